"""A plan whose model's parameters move or change."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import InvalidArgument, TorchError
from bestof.torch.compile.backend import InferenceGraph, bestof_backend
from bestof.torch.plan.layers.frozen_weights import FrozenWeights


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 64, 1), nn.BatchNorm2d(64)
    ).eval()


def test_the_bias_that_kernels_read_is_the_plans_own() -> None:
    bias = nn.Parameter(torch.randn(4))
    frozen = FrozenWeights(torch.randn(4, 3, 3, 3), bias, None, 1)
    assert frozen.bias is not None
    assert torch.equal(frozen.bias, bias)
    assert frozen.bias.data_ptr() != bias.data_ptr()


def test_parameters_may_move_to_shared_memory() -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    plan = bt.optimize(original, x)
    before = plan(x)
    original.share_memory()
    assert torch.equal(plan(x), before)


@pytest.mark.parametrize(
    ("read", "shape"),
    [
        (nn.Sequential(nn.Linear(300, 70), nn.ReLU(), nn.Linear(70, 9)), (1, 300)),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(64, 32, 1)), (1, 64, 5, 5)),
    ],
)
def test_weights_that_are_read_where_they_lie_may_move_to_shared_memory(
    read: nn.Module, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    read = read.eval()
    plan = bt.optimize(read, x, tune=False)
    program = next(iter(plan._programs.values())).program
    program.settle(dict.fromkeys((node.meta["name"] for node in program.choices), "matvec"))
    program.bind_anew()
    before = plan(x)
    assert set(program.decisions().values()) == {"matvec"}
    read.share_memory()
    kept = [
        torch.full((n,), float("nan")) for n in (9, 70, 300, 2048, 630, 21000) for _ in range(20)
    ]
    assert torch.equal(plan(x), before)
    assert kept


def _replaced(one: nn.Module) -> None:
    one[0].bias = nn.Parameter(torch.ones(4))  # type: ignore[index]


def _other_data(one: nn.Module) -> None:
    one[0].weight.data = torch.ones(4, 3, 3, 3)  # type: ignore[index]


def _in_place(name: str) -> Callable[[nn.Module], None]:
    def change(one: nn.Module) -> None:
        with torch.no_grad():
            one.get_submodule(name[0]).get_parameter(name[2:]).add_(1)

    return change


def _statistics(one: nn.Module) -> None:
    one[3].running_mean.add_(1)  # type: ignore[index]


@pytest.mark.parametrize(
    "change",
    [
        _replaced,
        _other_data,
        _statistics,
        *map(_in_place, ("0.bias", "0.weight", "3.weight", "3.bias")),
    ],
)
def test_a_change_is_an_error_at_the_next_call(change: Callable[[nn.Module], None]) -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    plan = bt.optimize(original, x)
    plan(x)
    change(original)
    with pytest.raises(TorchError, match="call optimize again"):
        plan(x)


def test_no_new_shape_is_planned_for_a_model_with_another_module() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    plan = bt.optimize(model, torch.randn(1, 3, 6, 6))
    model[0] = nn.Conv2d(3, 4, 3).eval()
    with pytest.raises(TorchError, match="buffer or module of the model was changed"):
        plan(torch.randn(1, 3, 9, 9))


def test_a_model_that_counts_its_calls_is_left_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * 2

    counting = Counting().eval()
    with pytest.raises(TorchError, match="changes a parameter or buffer"):
        bt.optimize(counting, torch.ones(3))
    assert counting.calls == 0


def test_a_compiled_graph_notices_other_memory() -> None:
    run = InferenceGraph(torch.fx.symbolic_trace(model()))
    weight = nn.Parameter(torch.ones(1, 3))
    linear = nn.Linear(3, 1, bias=False).eval()
    linear.weight, run._frozen = weight, [weight]
    run._plan = bt.optimize(linear, torch.ones(2, 3), tune=False)
    assert run._is_frozen([weight])
    weight.data = torch.zeros(1, 3)
    assert not run._is_frozen([weight])


def _behind_a_large_channel(original: nn.Module) -> None:
    original[0].weight.data[1, 1:] *= 2


def _by_numpy(original: nn.Module) -> None:
    original[2].weight.detach().numpy()[32, -1] += 1


def _one_bit(original: nn.Module) -> None:
    original[0].weight.data.view(torch.int32)[2, 0, 0, 0] ^= 1


def _statistics_uncounted(original: nn.Module) -> None:
    original[3].running_mean.data[32] += 1e-6


# In the middle of each tensor: its first and last bytes are compared at every call.
_UNCOUNTED = [_behind_a_large_channel, _by_numpy, _one_bit, _statistics_uncounted]


@pytest.mark.parametrize("change", _UNCOUNTED)
def test_check_weights_notices_writes_that_pytorch_does_not_count(
    change: Callable[[nn.Module], None],
) -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    original[0].weight.data[:, 0] = 1e6
    plan = bt.optimize(original, x)
    sure = bt.optimize(original, x, check_weights=True)
    plan.check_weights()
    expected = sure(x)
    assert torch.equal(copy.deepcopy(sure)(x), expected)
    change(original)
    plan(x)  # by default not every byte is compared
    for check in (plan.check_weights, lambda: sure(x), lambda: copy.deepcopy(sure)(x)):
        with pytest.raises(TorchError, match="a write that PyTorch does not count"):
            check()
    assert sure.release()(x).shape == expected.shape  # no model is left that could change


def test_weights_that_move_keep_their_bits() -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    plan = bt.optimize(original, x, check_weights=True)
    expected = plan(x)
    original.share_memory()
    assert torch.equal(plan(x), expected)
    _one_bit(original)
    with pytest.raises(TorchError, match="does not count"):
        plan(x)


def test_a_compiled_graph_plans_anew_after_an_uncounted_write() -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled = torch.compile(original, backend="bestof", options={"check_weights": True})
        torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-5)
        _behind_a_large_channel(original)
        torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-5)


def test_options_that_the_backend_does_not_have() -> None:
    graph = torch.fx.symbolic_trace(model())
    with pytest.raises(InvalidArgument, match="check_weights"):
        bestof_backend(graph, [], options={"check_weight": True})
    with pytest.raises(InvalidArgument, match="check_weights"):
        bt.optimize(model(), torch.randn(2, 3, 8, 8), check_weights="yes")  # type: ignore[arg-type]
