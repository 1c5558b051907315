"""Channels of values in channels last, gathered into one value, and perhaps normed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node

from bestof.kernels import ChannelPlan
from bestof.torch.plan.layers.activations import activation_of, recognise_activation
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.operations.checks import expect, is_alike, is_rows, val
from bestof.torch.plan.operations.convolution import is_residual
from bestof.torch.plan.operations.fused_layer import check_norm
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    is_plain,
    only_user,
    other_argument,
    shape_of,
)

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class JoinedChannels(Operation):
    """A part of the channels of concatenated and perhaps shuffled values, or a norm of all.

    A concatenation, a part of a value (`chunk`) and a channel shuffle are such a value, and so is a
    part of a shuffled concatenation: each half of what a unit of ShuffleNetV2 passes on. groups: of
    the shuffle, 1 without one. start: the first channel that is taken.

    weights: those of an evaluated batch norm that no convolution took in, or None. Then the result
    is activation(norm + residual) of all channels in order. slope: of the activation, below zero.
    added: whether the last argument of the node is a residual; the others are concatenated.
    """

    name: ClassVar[str] = "channels"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True

    groups: int = 1
    start: int = 0
    weights: FrozenWeights | None = None
    activation: str = ""
    slope: float = 0.0
    added: bool = False

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operator of norms. `fusion/channel_parts.py` makes what has none."""
        return {aten.batch_norm.default: _recognise_norm}

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take the addition and the activation that follow into the norm."""
        user, operation = only_user(node), self
        if user is not None and user.target is aten.add.Tensor:
            other = other_argument(user, node)
            if is_residual(node, other, user):
                operation = replace(self, added=True)
                node = rewriter.absorb(node, user, operation, *node.args, other)
        user = only_user(node)
        found = None if user is None else recognise_activation(user)
        if user is not None and found is not None:
            changed = replace(operation, activation=found[0], slope=found[1])
            rewriter.absorb(node, user, changed, *node.args)

    def pieces(self, node: Node) -> tuple[Any, ...]:
        """Return the values that are concatenated."""
        return node.args[:-1] if self.added else node.args

    def parts(self, node: Node) -> Mapping[Node, int]:
        """Return the arguments of a concatenation, and their first channels.

        If an argument repeats, none lies in the result.
        """
        first, behind = dict[Node, int](), 0
        for one in node.args:
            assert isinstance(one, Node)
            first[one], behind = behind, behind + shape_of(one)[1]
        plain = (self.groups, self.start, self.weights) == (1, 0, None)
        whole = plain and not self.added and behind == shape_of(node)[1]
        return first if whole and len(first) == len(node.args) else {}

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step: the kernel is given addresses, which stay where they are."""
        n, count, height, width = shape_of(node)
        pieces = self.pieces(node)
        scale, shift = (None, None) if self.weights is None else self.weights.affine()
        plan = ChannelPlan(
            n * height * width,
            [shape_of(one)[1] for one in pieces],
            groups=self.groups,
            start=self.start,
            count=count,
            scale=scale,
            shift=shift,
            activation=(self.activation, self.slope),
            dtype=str(val(node).dtype).removeprefix("torch."),
            held=[place for place, one in enumerate(pieces) if placed.is_part(one)],
        )
        sources = [placed.tensor(one).data_ptr() for one in pieces]
        residual = placed.tensor(node.args[-1]).data_ptr() if self.added else 0
        words = ["channels"] if self.weights is None else ["channels", "norm", self.activation]
        run = plan.bind(sources, placed.out.data_ptr(), residual)
        return placed.step(" ".join(filter(None, words)), run)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        numbers = self.groups, self.start
        expect(all(type(one) is int for one in numbers) and type(self.added) is bool, node.name)
        pieces = self.pieces(node)
        expect(bool(pieces) and is_rows(node) and all(map(is_rows, node.args)), node.name)
        n, count, height, width = shape_of(node)
        given: list[Any] = [val(one) for one in pieces]
        alike = all(
            (one.shape[0], *one.shape[2:]) == (n, height, width) and one.dtype is val(node).dtype
            for one in given
        )
        whole = sum(one.shape[1] for one in given)
        right = self.groups > 0 and whole % self.groups == 0
        expect(alike and right and 0 <= self.start <= whole - count, node.name)
        activation_of(self.activation)
        expect(type(self.slope) in (float, int) and abs(self.slope) < 2**127, node.name)
        if self.weights is None:
            expect(not self.activation and not self.added, node.name)
            return
        expect(self.weights.norm is not None, node.name)
        check_norm(self.weights.norm, (count,))
        expect(self.groups == 1 and whole == count, node.name)
        expect(not self.added or is_alike(node, node.args[-1]), node.name)


def _recognise_norm(rewriter: Rewriter, node: Node) -> None:
    """Replace a norm that no convolution took in."""
    if not is_plain(node, 4, MULTIPLIED) or not node.users:
        return
    dtype = val(node).dtype
    norm = rewriter.norm(node)
    if norm is not None and is_plain(node.args[0], 4, {dtype}):
        frozen = rewriter.norm_alone(norm, torch.ones(shape_of(node)[1], 1, 1, 1, dtype=dtype))
        rewriter.replace(node, JoinedChannels(weights=frozen), node.args[0])
