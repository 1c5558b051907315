"""What happens to a plan when the parameters that it was made from move or change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.frozen_weights import FrozenWeights


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()


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
    [_replaced, _other_data, _statistics, *map(_in_place, ("0.bias", "0.weight", "3.weight", "3.bias"))],
)
def test_a_change_is_an_error_at_the_next_call(change: Callable[[nn.Module], None]) -> None:
    original, x = model(), torch.randn(2, 3, 8, 8)
    plan = bt.optimize(original, x)
    plan(x)
    change(original)
    with pytest.raises(TorchError, match="call optimize again"):
        plan(x)
