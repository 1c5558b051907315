"""The steps that PyTorch runs."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.arena import Arena
from bestof.torch.plan.mutation import aliased_argument
from bestof.torch.plan.place import Place
from bestof.torch.plan.step import Step


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

    def run() -> None:
        result = target(
            *[find() for find in positional], **{name: find() for name, find in named.items()}
        )
        slots[slot] = result if arena is None else _outside(arena, result)
        for one in dead:
            slots[one] = None

    return place.step(str(target), run)


def _outside(arena: Arena, result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.clone() if arena.holds(result) else result
    if isinstance(result, list | tuple):
        return [_outside(arena, one) for one in result]
    return result
