"""Squeeze-and-excitation of values in channels last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.kernels import ExcitationPlan
from bestof.torch.plan.algorithms.native_runner import native_runner
from bestof.torch.plan.layers.activations import activation_of, recognise_activation
from bestof.torch.plan.operations.checks import expect, is_alike, is_rows, val
from bestof.torch.plan.operations.convolution import is_residual
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import only_user, other_argument, shape_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Excitation(Operation):
    """last(x * gate + residual), where means over the image gate each channel.

    The node's arguments: x, the weight and the bias of both small layers, and perhaps a residual.
    A bias may be None. inner, last: names of activations, with their slopes. hard: whether the gate
    is a hard sigmoid. `fusion/excitations.py` makes it.
    """

    name: ClassVar[str] = "excitation"
    reads_rows: ClassVar[bool] = True
    yields_rows: ClassVar[bool] = True
    reads_parameters: ClassVar[bool] = True
    overwrites_first: ClassVar[bool] = True

    hard: bool
    inner: str
    inner_slope: float
    last: str = ""
    last_slope: float = 0.0

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take the addition and the activation that follow into the step."""
        user = only_user(node)
        if user is not None and user.target is aten.add.Tensor:
            other = other_argument(user, node)
            if is_residual(node, other, user):
                node = rewriter.absorb(node, user, self, *node.args, other)
        user = only_user(node)
        found = None if user is None else recognise_activation(user)
        if user is not None and found is not None:
            changed = replace(self, last=found[0], last_slope=found[1])
            rewriter.absorb(node, user, changed, *node.args)

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step. The model's parameters may move, so each call asks where they lie."""
        n, channels, height, width = shape_of(node)
        plan = ExcitationPlan(
            (n, height, width, channels),
            shape_of(node.args[1])[0],
            hard=self.hard,
            inner=(self.inner, self.inner_slope),
            last=(self.last, self.last_slope),
        )
        x, out = placed.tensor(node.args[0]).data_ptr(), placed.out.data_ptr()
        parameters = [one and placed.tensor(one) for one in node.args[1:5]]
        residual = placed.tensor(node.args[5]).data_ptr() if len(node.args) > 5 else 0

        @native_runner
        def run() -> None:
            addresses = [one.data_ptr() if isinstance(one, Tensor) else 0 for one in parameters]
            plan.run((x, *addresses, residual), out)

        return placed.step("squeeze and excitation", run)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        expect(len(node.args) in (5, 6) and isinstance(self.hard, bool), node.name)
        for name, slope in ((self.inner, self.inner_slope), (self.last, self.last_slope)):
            activation_of(name)
            expect(type(slope) in (float, int) and abs(slope) < 2**127, node.name)
        x, squeeze, squeeze_bias, excite, excite_bias, *residual = node.args
        for one in (node, x, *residual):
            expect(is_rows(one) and is_alike(node, one), node.name)
        channels, hidden = shape_of(node)[1], shape_of(squeeze)[0]
        _expect_parameter(squeeze, [hidden, channels, 1, 1], node.name)
        _expect_parameter(excite, [channels, hidden, 1, 1], node.name)
        for bias, count in ((squeeze_bias, hidden), (excite_bias, channels)):
            if bias is not None:
                _expect_parameter(bias, [count], node.name)
        expect(val(node).dtype is torch.float32 and val(node).numel() > 0, node.name)


def is_dense_parameter(value: Tensor) -> bool:
    """Return whether the kernel can read a weight of single pixels, or a bias, where it lies."""
    dense = value.dim() > 0 and value.flatten(1 if value.dim() > 1 else 0).is_contiguous()
    return dense and value.dtype is torch.float32 and value.numel() > 0


def _expect_parameter(node: Any, shape: list[int], what: str) -> None:
    expect(isinstance(node, Node) and node.op == "get_attr", what)
    value = val(node)
    expect(list(value.shape) == shape and value.layout is torch.strided, what)
    expect(is_dense_parameter(value), what)
