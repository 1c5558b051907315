"""A node of a program at its place in memory: where its arguments and its result lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.memory.arena import Arena
from bestof.torch.plan.memory.memory_plan import MemoryPlan
from bestof.torch.plan.steps.chosen_step import Choice, ChosenStep
from bestof.torch.plan.steps.convolution_step import LayerChoice
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.strides import reads_strides, with_strides


class PlacedNode:
    """A node in a binding of its program.

    Values that lie in the arena, and parameters, are known when a program is bound: `tensor`
    returns them. Values that PyTorch computes are known when they have been computed: `finder`
    returns a function that looks them up in `slots`. `dead` are the slots that no later step reads.
    choice: that of what runs the node, None if nothing is chosen.
    """

    def __init__(
        self,
        node: Node,
        memory: MemoryPlan,
        arena: Arena,
        slots: list[Any],
        choice: Choice | None,
    ) -> None:
        self._node, self._memory, self.choice = node, memory, choice
        self.arena, self.slots, self.slot = arena, slots, memory.slot[node]
        buffer = memory.workspaces.get(node)
        self.workspace: Tensor | None = None
        if buffer is not None:
            shape, place = buffer
            self.workspace = arena.view(
                place, shape, channels_last=True, dtype=node.meta["val"].dtype
            )

    @property
    def out(self) -> Tensor:
        """The memory of the result, in the arena."""
        return self.tensor(self._node)

    @property
    def own_choice(self) -> Choice:
        """The choice of the algorithm, for nodes that always have one."""
        assert self.choice is not None
        return self.choice

    @property
    def layer_choice(self) -> LayerChoice:
        """The choice of the algorithm, for nodes that are fused layers."""
        assert isinstance(self.choice, LayerChoice)
        return self.choice

    def tensor(self, node: Any) -> Tensor:
        """Return a value that lies in the arena, or a parameter."""
        value = self.slots[self.slot_of(node)]
        assert isinstance(value, Tensor)
        return value

    def is_contiguous(self, node: Any) -> bool:
        """Return whether a value lies in the arena, contiguous."""
        return self._memory.lies_contiguous(node)

    def is_part(self, node: Any) -> bool:
        """Return whether a value lies where a concatenation has it."""
        return node in self._memory.parts

    def slot_of(self, node: Any) -> int:
        """Return the slot of a value."""
        return self._memory.slot[node]

    def finder(self, node: Any) -> Callable[[], Any]:
        """Return a function that looks up a value during a call."""
        slots, slot = self.slots, self.slot_of(node)
        return lambda: slots[slot]

    @property
    def dead(self) -> tuple[int, ...]:
        """The slots to clear behind the step."""
        return self._memory.dead_after(self._node)

    def step(
        self,
        kind: str,
        run: Callable[[], object],
        chosen: ChosenStep | None = None,
    ) -> Step:
        """Return the step of this node."""
        node = self._node
        name = node.meta.get("name", node.name)
        return Step(name, kind, self.slot, node in self._memory.planned, run, chosen)

    def arguments(self) -> tuple[list[Callable[[], Any]], dict[str, Callable[[], Any]]]:
        """Return functions that look up the positional and the named arguments of the operator."""
        node = self._node
        named = {name: self._argument(value) for name, value in node.kwargs.items()}
        return [self._argument(value) for value in node.args], named

    def _argument(self, value: Any) -> Callable[[], Any]:
        if isinstance(value, Node):
            find = self.finder(value)
            described = value.meta.get("val")
            if reads_strides(self._node) and isinstance(described, torch.Tensor):
                strides = described.stride()
                return lambda: with_strides(find(), strides)
            return find
        if isinstance(value, list | tuple) and any(isinstance(one, Node) for one in value):
            parts = [self._argument(one) for one in value]
            return lambda: [part() for part in parts]
        return lambda: value
