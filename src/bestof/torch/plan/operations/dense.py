"""Copies of PyTorch's results into the arena, where kernels know the addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from bestof.torch.plan.operations.checks import expect, is_alike, val
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import MULTIPLIED


@dataclass(frozen=True, slots=True)
class Dense(Operation):
    """A contiguous copy of a value that PyTorch computes."""

    name: ClassVar[str] = "dense"

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step, which looks up the value at each call."""
        slots, source, into = placed.slots, placed.slot_of(node.args[0]), placed.out
        return placed.step("copy", lambda: into.copy_(slots[source]))

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes or types disagree."""
        expect(len(node.args) == 1, node.name)
        expect(is_alike(node, node.args[0]) and val(node).dtype in MULTIPLIED, node.name)
