"""What a plan computes once, though the model computes it several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_results import operations
from torch import Tensor, nn

import bestof.torch as bt


class Net(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def count(function: Callable[[Any, Tensor], Any], operator: str) -> int:
    """Return how often a plan runs an operator; its outputs must be the model's."""
    model, x = Net(function).eval(), torch.randn(3, 8)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        for given in (x, -x):
            torch.testing.assert_close(plan(given), model(given))
    return operations(plan, x).count(operator)


def positions_in_each_layer(net: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + torch.arange(8).float().cos()[None] * net.linear(x)
    return x


@pytest.mark.parametrize("operator", ["arange.default", "cos.default"])
def test_layers_share_what_is_equal(operator: str) -> None:
    assert count(positions_in_each_layer, f"aten.{operator}") == 1


def test_equal_layers_of_equal_values_are_one() -> None:
    assert count(lambda net, x: net.linear(x).sin() * net.linear(x).cos(), "linear") == 1


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda net, x: x.add(1).cumsum(0) + x.sub(1).cumsum(0), "cumsum.default"),
        (lambda net, x: torch.copysign(x, 0.0) + torch.copysign(x, -0.0), "copysign.Scalar"),
        (lambda net, x: x.sum(0, keepdim=True) + x.sum(0, keepdim=False), "sum.dim_IntList"),
        (lambda net, x: x.gt(0).sum().div(1) + x.gt(0).sum().div(True), "div.Tensor"),
        (lambda net, x: torch.full((8,), 1) / torch.full((8,), 1.0) * x, "full.default"),
    ],
)
def test_what_differs_stays(function: Callable[[Any, Tensor], Any], operator: str) -> None:
    assert count(function, f"aten.{operator}") == 2


def test_random_numbers_are_drawn_each_time() -> None:
    model = Net(lambda net, x: torch.rand_like(x) - torch.rand_like(x))
    plan = bt.optimize(model.eval(), torch.randn(3, 8))
    assert plan(torch.randn(3, 8)).any()


def test_each_output_has_memory_of_its_own() -> None:
    def function(net: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.cumsum(0), x.cumsum(0), x.cumsum(0).view(2, 12), x.cumsum(0).sin()

    model, x = Net(function).eval(), torch.randn(3, 8)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        first, second, third, _ = plan(x)
        first.zero_()
        second.fill_(1.0)
        right = x.cumsum(0)
    torch.testing.assert_close(third, right.view(2, 12))
    torch.testing.assert_close(second, torch.ones(3, 8))


class Cached(nn.Module):
    """Writes to its input, between two equal reads of it."""

    def forward(self, x: Tensor, cache: Tensor, position: Tensor) -> Tensor:
        before = cache.cumsum(0)
        cache.index_copy_(0, position, x)
        return before + cache.cumsum(0)


def test_a_value_that_changed_is_read_anew() -> None:
    x, position = torch.randn(1, 8), torch.tensor([2])
    caches = torch.zeros(4, 8), torch.zeros(4, 8)
    plan = bt.optimize(Cached().eval(), (x, caches[0].clone(), position))
    for _ in range(2):
        found = plan(x, caches[0], position), Cached()(x, caches[1], position)
        torch.testing.assert_close(*found)
    torch.testing.assert_close(*caches)


PARTS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "split": (lambda net, x: torch.mul(*net.linear(x).split(4, 1)), "aten.split.Tensor"),
    "split, the last smaller": (
        lambda net, x: torch.cat([one.sin() for one in net.linear(x).split(3, -1)], 1),
        "aten.split.Tensor",
    ),
    "sizes": (
        lambda net, x: torch.cat([one.sin() for one in net.linear(x).split([2, 5, 1], -1)], 1),
        "aten.split_with_sizes.default",
    ),
    "chunks": (lambda net, x: torch.mul(*net.linear(x).chunk(2, -1)), "aten.chunk.default"),
    "rows": (lambda net, x: net.linear(x).split(2)[1], "aten.split.Tensor"),
    "single": (lambda net, x: torch.stack(net.linear(x).unbind(1)[::-1]), "aten.unbind.int"),
    "tensor_split": (
        lambda net, x: torch.cat([one.sin() for one in net.linear(x).tensor_split(3, 1)], 1),
        "aten.tensor_split.sections",
    ),
}


@pytest.mark.parametrize(("function", "operator"), PARTS.values(), ids=PARTS)
def test_parts_of_planned_values_take_no_step(
    function: Callable[[Any, Tensor], Any], operator: str
) -> None:
    assert count(function, operator) == 0
    plan = bt.optimize(Net(function).eval(), torch.randn(3, 8))
    steps = {step.problem for step in plan.explain(repeats=1).steps}
    assert not steps & {"aten.slice.Tensor", "aten.select.int", "<built-in function getitem>"}


@pytest.mark.parametrize("operator", ["unsqueeze.default", "select.int", "slice.Tensor"])
def test_views_of_planned_values_take_no_step(operator: str) -> None:
    model, x = Net(lambda net, x: net.linear(x)[:, None, 2:, None][1] * 2).eval(), torch.randn(3, 8)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(-x), model(-x))
    steps = [step.problem for step in plan.explain(repeats=1).steps]
    assert steps[-1] == "aten.mul.Tensor"
    assert f"aten.{operator}" not in steps
