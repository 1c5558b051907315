"""Rows, operations and modules that the configuration leaves in or out by name."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning, InvalidArgument
from bestof.torch.backends.shim import is_skipped
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.dispatch.skipped_modules import SKIPPED_MODULES
from bestof.torch.enable import _State
from bestof.torch.ops import table
from bestof.torch.plan.steps import convolution_step
from bestof.torch.rows.row_selector import row_selector


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


X = random(512, 1024)
LARGE = random(8, 64, 64, 64)


def names_of(operation: str) -> tuple[str, ...]:
    return row_selector(table.named(operation, "")).selector.alternative_names


def chosen() -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for one in bt.summary().passes:
        found.setdefault(one.name, set()).add(one.chosen)
    return found


def calls() -> dict[str, int]:
    return {f"{one.name} {one.problem}": one.calls for one in bt.summary().passes}


def enable(**kernel: Any) -> None:
    bt.enable({"kernel": kernel})


def test_only_leaves_these_and_pytorch() -> None:
    with pytest.warns(BestofWarning, match="kernel.only leaves nothing but PyTorch's own") as told:
        enable(only=["native winograd4", "im2row"])
    assert len(told) == 1
    assert "product, attention" in str(told[0].message)
    assert "convolution forward" not in str(told[0].message)
    assert names_of("convolution forward") == ("as is", "im2row", "native winograd4")
    assert names_of("silu") == ("as is",)
    enable(only=["native winograd4", "im2row"])  # said once
    enable()
    assert names_of("silu") == ("as is", "native")
    assert "fft" in names_of("convolution forward")


@pytest.fixture(autouse=True)
def nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_State, "told", set())


def line_of_fft() -> str:
    selector = row_selector(table.named("convolution forward", "")).selector
    (line,) = [line for line in str(selector.report()).splitlines() if line.split()[0] == "fft"]
    return line


def test_only_is_an_order_to_try_what_is_thought_slow() -> None:
    x, w = random(1, 16, 32, 32), random(16, 16, 3, 3)
    enable(accuracy="relaxed")
    F.conv2d(x, w, padding=1)
    assert "left out: estimated at" in line_of_fft()
    with pytest.warns(BestofWarning, match="kernel.only leaves nothing"):
        enable(accuracy="relaxed", only=["fft"])
    for _ in range(4):
        F.conv2d(x, w, padding=1)
    assert " trials " in line_of_fft()


def test_without_takes_rows_and_operations_and_gives_them_back() -> None:
    enable()
    for _ in range(60):
        F.silu(X)
        F.gelu(X, approximate="tanh")
    enable(without=["native"])
    assert names_of("silu") == ("as is",)
    before = calls()
    F.silu(X)
    assert calls() != before  # the operation is still chosen for
    assert chosen()["silu"] == {"as is"}
    enable(without=["silu"])
    before = calls()
    F.silu(X)
    assert calls() == before
    F.gelu(X, approximate="tanh")
    assert calls() != before
    trials = bt.summary().trials
    enable()
    for _ in range(20):
        F.silu(X)
        F.gelu(X, approximate="tanh")
    assert bt.summary().trials <= trials + 2  # evidence stayed


def test_layers_obey_too() -> None:
    bestof.use_policy("fixed:shared im2row")
    x, w = random(2, 16, 32, 32), random(16, 16, 3, 3).requires_grad_()

    def step() -> str:
        F.conv2d(x, w, padding=1).sum().backward()
        override = convolution_override()
        assert override is not None
        return next(iter(override.selector.best_name.values()), "undecided")

    enable()
    assert step() == "shared im2row"
    enable(without=["shared im2row"])
    assert step() != "shared im2row"


class Silu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) + 1


def algorithms(model: nn.Module, x: Tensor) -> list[str | None]:
    return [one.algorithm for one in bt.optimize(model.eval(), (x,)).explain(x).steps]


@pytest.mark.parametrize("left_out", [["silu"], ["native"]])
def test_plans_ask_too(left_out: list[str]) -> None:
    bestof.use_policy("fixed:native")
    assert "native" in algorithms(Silu(), X)
    enable(without=left_out)
    assert "native" not in algorithms(Silu(), X)
    bt.disable()
    bestof.use_policy("fixed:native")
    assert "native" in algorithms(Silu(), X)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "convolution forward": lambda: (nn.Sequential(nn.Conv2d(16, 16, 3, padding=1)), LARGE[:2, :16]),
    "product": lambda: (nn.Sequential(nn.Linear(1024, 512)), X),
    "max pooling": lambda: (nn.Sequential(nn.MaxPool2d(2)), LARGE),
    "average pooling": lambda: (nn.Sequential(nn.AvgPool2d(2)), LARGE),
    "layer norm": lambda: (nn.Sequential(nn.LayerNorm(1024)), X),
}


@pytest.mark.parametrize("operation", MODELS)
def test_plans_leave_operations_to_pytorch(operation: str) -> None:
    model, x = MODELS[operation]()
    expected = model.eval()(x)
    enable(without=[operation])
    plan = bt.optimize(model, (x,))
    assert torch.equal(plan(x), expected)
    assert [one.algorithm for one in plan.explain(x).steps if one.algorithm] == []


def test_fused_layers_have_no_algorithm_that_is_left_out() -> None:
    bestof.use_policy("fixed:direct")
    model, x = MODELS["convolution forward"]()
    assert "direct" in algorithms(model, x)
    enable(without=["native direct"])
    assert "direct" not in algorithms(model, x)
    selector = convolution_step.selector()
    bt.disable()
    assert "direct" in algorithms(model, x)
    assert convolution_step.selector() is selector


WRONG = [
    ({"only": ["im3row"]}, "kernel.only: there is no row 'im3row'; did you mean 'im2row'"),
    ({"only": ["silu"]}, "kernel.only: there is no row 'silu'"),
    ({"only": []}, "kernel.only: expected at least one name; got none"),
    ({"only": "im2row"}, "kernel.only: expected a list of names; got 'im2row'"),
    ({"without": ["sillu"]}, "there is no operation or row 'sillu'; did you mean 'silu'"),
    ({"without": ["as is"]}, "'as is' is PyTorch's own kernel, which always stays"),
    ({"skip_modules": "layer1"}, "kernel.skip_modules: expected a list of names"),
]


@pytest.mark.parametrize(("kernel", "told"), WRONG)
def test_wrong_names_are_refused_before_anything_changes(kernel: Any, told: str) -> None:
    enable(without=["native"])
    with pytest.raises(InvalidArgument, match=told):
        enable(**kernel)
    assert names_of("silu") == ("as is",)


# Modules


def model() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.SiLU())
    return nn.Sequential(inner, nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 8, 3, padding=1))


IMAGES = LARGE[:4, :16].contiguous()


def met(patterns: list[str], run: Callable[[nn.Module], Tensor]) -> set[str]:
    """Return the channels of the convolutions that bestof met, forward and backward."""
    enable(skip_modules=patterns)
    net, x = model(), IMAGES.clone().requires_grad_()
    for _ in range(4):
        run_with(net, x, run)
    found = {one.problem.split(",b")[0] for one in bt.summary().passes if "i" in one.problem}
    return {one for one in found if one.startswith("i")}


def run_with(net: nn.Module, x: Tensor, run: Callable[..., Tensor]) -> None:
    run(net, x).square().mean().backward()


FIRST, SECOND, THIRD = "i16x64x64,k16x3x3", "i16x64x64,k32x3x3", "i32x64x64,k8x3x3"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], {FIRST, SECOND, THIRD}),
        (["0.0"], {SECOND, THIRD}),
        (["0.*"], {SECOND, THIRD}),
        (["0"], {SECOND, THIRD}),
        (["[12]"], {FIRST}),
        (["*"], set()),
        (["0", "0.*", "2"], {SECOND}),
    ],
)
@pytest.mark.parametrize("way", ["plain", "checkpoint", "named"])
def test_modules_are_left_to_pytorch(patterns: list[str], expected: set[str], way: str) -> None:
    run: Callable[..., Tensor] = {
        "plain": lambda net, x: net(x),
        "checkpoint": lambda net, x: checkpoint(net, x, use_reentrant=False),
        "named": lambda net, x: net(input=x),
    }[way]
    assert met(patterns, run) == expected
    assert not is_skipped()


def test_their_gradients_are_those_of_pytorch() -> None:
    def gradients() -> list[Tensor]:
        net = model()
        run_with(net, IMAGES, lambda net, x: net(x))
        return [one.grad for one in net.parameters() if one.grad is not None]

    expected = gradients()
    enable(skip_modules=["*"])
    assert all(map(torch.equal, gradients(), expected))
    assert calls() == {}


def test_other_threads_and_what_raises_are_not_skipped() -> None:
    enable(skip_modules=["0"])
    seen: list[bool] = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(is_skipped())
            thread = threading.Thread(target=lambda: seen.append(is_skipped()))
            thread.start()
            thread.join()
            if x.numel() == 0:
                raise ValueError("empty")
            if x.numel() == 1:
                raise KeyboardInterrupt
            return x

    net = nn.Sequential(Looks())
    net(X)
    assert seen == [True, False]
    assert not is_skipped()
    with pytest.raises(ValueError, match="empty"):
        net(X[:0])
    assert not is_skipped()
    with pytest.raises(KeyboardInterrupt):
        net(X[:1, :1])
    seen.clear()
    nn.Sequential(nn.Identity(), Looks())(X)
    assert seen == [False, False]


def test_new_modules_of_a_model_are_named_too() -> None:
    enable(skip_modules=["2"])
    net = model()
    net(IMAGES)
    net[2] = nn.Conv2d(32, 8, 3, padding=1)
    before = {name for name in calls() if THIRD in name}
    net(IMAGES)
    assert {name for name in calls() if THIRD in name} == before == set()


def test_a_pattern_that_matched_nothing_is_told_at_the_end() -> None:
    SKIPPED_MODULES._unmet.clear()
    enable(skip_modules=["0", "leyer1.*"])
    model()(IMAGES)
    assert SKIPPED_MODULES.unmet() == ["leyer1.*"]
    SKIPPED_MODULES._unmet.clear()
    program = (
        "import torch, bestof.torch as bt\n"
        "bt.enable({'kernel': {'skip_modules': ['leyer1.*']}})\n"
        "torch.nn.ReLU()(torch.ones(1))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "kernel.skip_modules: 'leyer1.*' matched no module that was called" in ended.stderr


def test_no_hook_is_left_behind() -> None:
    """PyTorch warns of hooks of all modules in each call of a compiled one."""
    enable(skip_modules=["0"])
    model()(IMAGES)
    bt.disable()
    assert not torch.nn.modules.module._has_any_global_hook()
