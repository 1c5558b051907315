from __future__ import annotations

import io
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning


@pytest.fixture(autouse=True)
def _disabled_at_the_end() -> Iterator[None]:
    yield
    bt.disable()


def skip(*patterns: str) -> None:
    bt.enable({"kernel": {"skip_modules": list(patterns)}})


def optimized(model: nn.Module, x: Tensor) -> bt.OptimizedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        plan = bt.optimize(model, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)
    return plan


def pytorch_steps(plan: bt.OptimizedModel) -> list[str]:
    """Return PyTorch's operators in a plan."""
    steps = [step.problem for step in plan.explain(repeats=1).steps]
    return [one.removeprefix("aten.").split(".")[0] for one in steps if one.startswith("aten.")]


def network() -> nn.Module:
    layers = (
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 16), nn.GELU(), nn.Linear(16, 16)),
    )
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], []),
        (["3"], ["conv2d", "relu"]),  # no layer is left that takes the activation in
        (["1"], ["batch_norm", "relu"]),  # the norm is not folded into the weights
        (["4"], ["relu"]),
        (["[78]"], ["linear", "gelu"]),
    ],
)
def test_a_plan_runs_the_operators_of_skipped_modules(
    patterns: list[str], expected: list[str]
) -> None:
    torch.manual_seed(0)
    skip(*patterns)
    assert pytorch_steps(optimized(network(), torch.randn(2, 8, 16, 16))) == expected


@pytest.mark.parametrize("patterns", [[], ["1"]])
def test_a_skipped_shuffle_is_left_to_pytorch(patterns: list[str]) -> None:
    """Channels are gathered where layouts are chosen, after all other operations."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(8, 8, 1), nn.ChannelShuffle(2), nn.Conv2d(8, 8, 1))
    skip(*patterns)
    plan = optimized(nn.Sequential(*layers).eval(), torch.randn(2, 8, 16, 16))
    assert pytorch_steps(plan) == ["channel_shuffle"] * len(patterns)


def test_a_plan_that_skips_all_has_the_bits_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = network(), torch.randn(2, 8, 16, 16)
    skip("*")
    plan = optimized(model, x)
    assert plan.explain(repeats=1).steps[0].problem == "aten.conv2d.default"
    bt.disable()
    with torch.no_grad():
        assert torch.equal(plan(x), model(x))


def test_rows_and_composed_operations_are_skipped_too() -> None:
    """SiLU by two operators is one row elsewhere."""

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    model = nn.Sequential(Gate(), nn.Softmax(-1), Gate(), nn.Softmax(-1)).eval()
    skip("[01]")
    steps = optimized(model, torch.randn(512, 2048)).explain(repeats=1).steps
    assert [one.algorithm is None for one in steps] == [True, True, True, False, False]
    assert [one.problem for one in steps[:3]] == [
        *("aten.sigmoid.default", "aten.mul.Tensor", "aten.softmax.int")
    ]


def test_one_layer_of_a_transformer_is_skipped() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation="gelu")
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 24, 32)
    skip("layers.0")
    steps = pytorch_steps(optimized(model, x))
    # Those of the second layer are joined with others.
    assert {one: steps.count(one) for one in ("linear", "gelu", "layer_norm")} == {
        "linear": 4,
        "gelu": 1,
        "layer_norm": 2,
    }


def test_a_model_that_changes_views_is_traced_with_its_modules() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(96, 96), nn.Linear(96, 96)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            part, turned = y.view(-1, 2, 48), y.t()
            y.add_(1)
            part[:, 0].mul_(2)
            result: Tensor = self.second(y) + turned.sum()
            return result

    skip("first")
    steps = pytorch_steps(optimized(Changes().eval(), torch.randn(512, 96)))
    assert steps.count("addmm") == 1


def test_a_saved_plan_keeps_what_it_skips() -> None:
    torch.manual_seed(0)
    skip("[37]")
    x, file = torch.randn(2, 8, 16, 16), io.BytesIO()
    plan = optimized(network(), x)
    plan.save(file)
    bt.disable()
    file.seek(0)
    loaded = bt.load(file)
    assert pytorch_steps(loaded) == pytorch_steps(plan) == ["conv2d", "relu", "linear", "gelu"]


def test_modules_without_calls_in_the_trace_are_told() -> None:
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).eval(), torch.randn(2, 6)
    exported = torch.export.export(model, (x,)).module()
    skip("[01]")
    with pytest.warns(BestofWarning, match="leaves '0', and 1 more of GraphModule to PyTorch, but"):
        bt.optimize(exported, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        bt.optimize(exported, x, accuracy="exact")
