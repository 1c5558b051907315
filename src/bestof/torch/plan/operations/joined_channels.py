"""Channels of values in channels last, gathered into one value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch.fx import Node

from bestof.kernels import ChannelPlan
from bestof.torch.plan.operations.checks import expect, is_rows, val
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import shape_of


@dataclass(frozen=True, slots=True)
class JoinedChannels(Operation):
    """A part of the channels of concatenated and perhaps shuffled values.

    A concatenation, a part of a value (`chunk`) and a channel shuffle are such a value, and so is a
    part of a shuffled concatenation: each half of what a unit of ShuffleNetV2 passes on. groups: of
    the shuffle, 1 without one. start: the first channel that is taken.
    """

    name: ClassVar[str] = "channels"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True

    groups: int = 1
    start: int = 0

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step: the kernel is given addresses, which stay where they are."""
        n, count, height, width = shape_of(node)
        plan = ChannelPlan(
            n * height * width,
            [shape_of(one)[1] for one in node.args],
            groups=self.groups,
            start=self.start,
            count=count,
            dtype=str(val(node).dtype).removeprefix("torch."),
        )
        sources = [placed.tensor(one).data_ptr() for one in node.args]
        return placed.step("channels", partial(plan.run, sources, placed.out.data_ptr()))

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        numbers = self.groups, self.start
        expect(bool(node.args) and all(type(one) is int for one in numbers), node.name)
        expect(is_rows(node) and all(map(is_rows, node.args)), node.name)
        n, count, height, width = shape_of(node)
        given: list[Any] = [val(one) for one in node.args]
        alike = all(
            (one.shape[0], *one.shape[2:]) == (n, height, width) and one.dtype is val(node).dtype
            for one in given
        )
        whole = sum(one.shape[1] for one in given)
        right = self.groups > 0 and whole % self.groups == 0
        expect(alike and right and 0 <= self.start <= whole - count, node.name)
