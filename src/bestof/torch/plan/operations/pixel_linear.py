"""Linear layers over the channels of pixels, whose residual lies in channels last."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch.fx import Node

from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.operations.channels import ToChannelsLast
from bestof.torch.plan.operations.checks import (
    expect,
    is_alike,
    is_dense,
    is_rows,
    operation_of,
    val,
)
from bestof.torch.plan.operations.fused_layer import FusedLayer
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import argument, is_plain, only_user, shape_of

aten = torch.ops.aten
_CHANNELS_FIRST = [0, 3, 1, 2]


@dataclass(frozen=True, slots=True)
class PixelLinear(FusedLayer):
    """x w + bias + residual, x (N, H, W, inputs), the rest (N, outputs, H, W) in channels last.

    The last layer of a block of ConvNeXt: the result is turned to (N, C, H, W) and added to the
    input of the block. In memory nothing turns, so the product adds. `Linear` makes it.
    """

    name: ClassVar[str] = "pixel linear"
    yields_rows: ClassVar[bool] = True
    overwrites_last: ClassVar[bool] = True

    def _input_shape(self, node: Node) -> tuple[int, ...]:
        *pixels, features = shape_of(node.args[0])
        return prod(pixels), features

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step: a linear layer whose rows are the pixels."""
        outer, inner = self.layer.weights.weight.shape
        out, residual = (
            one.permute(0, 2, 3, 1).view(-1, outer)
            for one in (placed.out, placed.tensor(node.args[1]))
        )
        x = placed.tensor(node.args[0]).view(-1, inner)
        step = ConvolutionStep(
            PlacedLayer(self.layer, placed.layer_choice.problem, x, out, residual, out),
            placed.layer_choice,
        )
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        self.check_layer(dim=2)
        self.check_types(node)
        layer = self.layer
        expect(layer.linear and not layer.pooled and not layer.gated, node.name)
        expect(len(node.args) == 2 and is_dense(node.args[0]), node.name)
        expect(is_rows(node) and is_rows(node.args[1]) and is_alike(node, node.args[1]), node.name)
        outer, inner = layer.weights.weight.shape
        x = val(node.args[0]).shape
        expect(len(x) == 4 and x[3] == inner, node.name)
        expect((x[0], outer, x[1], x[2]) == tuple(val(node).shape), node.name)


def turned(rewriter: Rewriter, node: Node, layer: Layer) -> Node | None:
    """Replace a linear layer, its turn to channels first and the addition behind that.

    Return the new node; None, without a change, if this is not what follows.
    """
    turn = only_user(node)
    if turn is None or turn.target is not aten.permute.default:
        return None
    if list(turn.args[1]) != _CHANNELS_FIRST or not is_dense(node.args[0]):  # type: ignore[arg-type]
        return None
    addition = only_user(turn)
    if addition is None or addition.target is not aten.add.Tensor:
        return None
    residual: Any = addition.args[1] if addition.args[0] is turn else addition.args[0]
    if argument(addition, "alpha") != 1 or not is_plain(residual, 4, {val(turn).dtype}):
        return None
    if not is_alike(turn, residual) or not is_alike(turn, addition):
        return None
    residual = _in_rows(rewriter, residual)
    made = rewriter.replace(addition, PixelLinear(layer), node.args[0], residual)
    made.meta["name"] = node.meta["name"]
    for one in (addition, turn, node):
        rewriter.module.graph.erase_node(one)
    return made


def _in_rows(rewriter: Rewriter, value: Node) -> Node:
    """Return a value in channels last, a copy if need be, which its other such readers share."""
    operation = operation_of(value)
    if operation is not None and operation.yields_rows:
        return value
    readers = [user for user in value.users if _reads_rows(user)]
    copy = rewriter.insert(value, ToChannelsLast(), value, val=value.meta["val"])
    for reader in readers:
        reader.replace_input_with(value, copy)
    return copy


def _reads_rows(node: Node) -> bool:
    operation = operation_of(node)
    return operation is not None and operation.reads_rows
