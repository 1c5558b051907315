"""Graphs without operators that change their arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.errors import TorchError
from bestof.torch.plan.trace.mutation import (
    AliasedMutation,
    changed_argument,
    refuse_state,
    remove_mutation,
)
from bestof.torch.plan.trace.traced import Trace, trace, without_mutation


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def traced(model: nn.Module, x: Tensor) -> Trace:
    leaves, spec = pytree.tree_flatten(((x,), {}))
    return trace(model, leaves, spec)


def used_afterwards(x: Tensor) -> object:
    y = x * 2
    y += 1
    z = y.relu_()
    return y * z, y


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = 7.0
    return y + 1


def by_two_names(x: Tensor) -> object:
    y = x * 2
    flat = y.view(-1)
    y.mul_(3)
    return flat.sum() + y.sum()


def the_input(x: Tensor) -> object:
    return x.mul_(2) + x


@pytest.mark.parametrize("function", [used_afterwards, the_input])
def test_pure_operators_take_the_place(function: Callable[[Tensor], object]) -> None:
    x = torch.randn(2, 3)
    one = traced(Function(function), x)
    assert remove_mutation(one.graph.graph) is (function is the_input)
    changing = [node for node in one.graph.graph.nodes if changed_argument(node) is not None]
    # Only the last value of an input is written, behind all other operators.
    assert changing == ([one.graph.graph.find_nodes(op="output")[0].prev] * len(changing))
    assert len(changing) == (function is the_input)
    one.graph.recompile()
    given = x.clone()
    expected = pytree.tree_leaves(function(given))
    for got, right in zip(one.graph(x), expected, strict=True):
        assert torch.equal(got, right)
    assert torch.equal(x, given)


def test_a_write_to_a_part_becomes_a_new_whole() -> None:
    x = torch.randn(2, 3)
    one = traced(Function(through_a_view), x)
    assert not remove_mutation(one.graph.graph)
    assert all(changed_argument(node) is None for node in one.graph.graph.nodes)
    one.graph.recompile()
    (got,) = one.graph(x)
    assert torch.equal(got, through_a_view(x.clone()))


def by_a_reshaped_part(x: Tensor) -> object:
    y = x * 2
    flat = y.view(-1)
    flat[1:3] = 7.0
    return y + 1


@pytest.mark.parametrize("function", [by_a_reshaped_part, by_two_names])
def test_memory_of_several_names_is_left_to_functionalisation(
    function: Callable[[Tensor], object],
) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(AliasedMutation):
        remove_mutation(traced(Function(function), x).graph.graph)
    one = without_mutation(traced(Function(function), x))
    assert all(changed_argument(node) is None for node in one.graph.graph.nodes)
    (got,) = one.graph(x)
    assert torch.equal(got, function(x.clone()))


def test_state_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    counting = Counting()
    with pytest.raises(TorchError, match="keeps no state"):
        remove_mutation(traced(counting, torch.ones(2)).graph.graph)
    assert counting.calls == 0
    norm = nn.BatchNorm2d(2)
    with pytest.raises(TorchError, match="keeps no state"):
        refuse_state(traced(norm, torch.ones(2, 2, 3, 3)).graph.graph)
    assert norm.num_batches_tracked == 0
