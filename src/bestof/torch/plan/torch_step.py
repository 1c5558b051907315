"""The steps that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.arena import Arena
from bestof.torch.plan.mutation import aliased_argument
from bestof.torch.plan.place import Place
from bestof.torch.plan.step import Step

aten = torch.ops.aten


def torch_step(node: Node, place: Place) -> Step:
    """Return the step of a node without an operation, which calls PyTorch's operator.

    Some operators return a view, or the argument itself, without saying so in their schema. Then
    the plan does not know how long that memory is needed: a result that lies in the arena is copied
    out of it.
    """
    target: Any = node.target
    positional, named = place.arguments()
    slots, slot, dead = place.slots, place.slot, place.dead
    known = target is operator.getitem or aliased_argument(node) is not None
    arena = None if known else place.arena
    if target is aten.as_strided.default:
        target = _strided_within(node, place.arena)

    def run() -> None:
        result = target(
            *[find() for find in positional], **{name: find() for name, find in named.items()}
        )
        slots[slot] = result if arena is None else _outside(arena, result)
        for one in dead:
            slots[one] = None

    return place.step(str(target), run)


def _strided_within(node: Node, arena: Arena) -> Callable[..., Tensor]:
    """Return `as_strided` whose offset counts from where the traced value's memory began.

    PyTorch counts from the beginning of the storage, and all values of an arena share one.
    """
    traced = node.args[0]
    assert isinstance(traced, Node)
    before = traced.meta["val"].storage_offset()

    def run(
        value: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
    ) -> Tensor:
        if storage_offset is not None and arena.holds(value):
            storage_offset += value.storage_offset() - before
        return value.as_strided(size, stride, storage_offset)

    return run


def _outside(arena: Arena, result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.clone() if arena.holds(result) else result
    if isinstance(result, list | tuple):
        return [_outside(arena, one) for one in result]
    return result
