"""Linear layers with the addition and the activation that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.layers.frozen_weights import Norm
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.operations.checks import expect, is_alike, is_dense, val
from bestof.torch.plan.operations.dense import Dense
from bestof.torch.plan.operations.fused_layer import FusedLayer
from bestof.torch.plan.operations.pixel_linear import turned
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    is_plain,
    only_user,
    other_argument,
    shape_of,
)

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Linear(FusedLayer):
    """A linear layer: a convolution of one pixel a row. Its input may come from PyTorch."""

    name: ClassVar[str] = "linear"
    gated: ClassVar[bool] = False
    overwrites_last: ClassVar[bool] = True

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operators that may become linear layers."""
        return {
            aten.linear.default: _recognise,
            aten.addmm.default: _recognise_addmm,
            aten.matmul.default: _recognise_product,
            aten.mm.default: _recognise_product,
        }

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take the addition and the activation that follow into the layer."""
        if turned(rewriter, node, self.layer) is not None:
            return
        user = only_user(node)
        if user is not None and user.target is aten.add.Tensor:
            other = other_argument(user, node)
            if _is_residual(node, other, user):
                residual = other if is_dense(other) else _dense_copy(rewriter, other)
                node = rewriter.absorb(node, user, self, node.args[0], residual)
        self.absorb_activation(rewriter, node)

    def _input_shape(self, node: Node) -> tuple[int, ...]:
        *rows, features = shape_of(node.args[0])
        return prod(rows), features

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step; an input outside of the arena is looked up at each call."""
        outer, inner = self.layer.weights.weight.shape
        out = placed.out.view(-1, outer)
        x: Tensor | Callable[[], Tensor]
        if placed.is_contiguous(node.args[0]):
            x = placed.tensor(node.args[0]).view(-1, inner)
        else:
            find = placed.finder(node.args[0])

            def contiguous() -> Tensor:
                value: Tensor = find()
                return (
                    (value.resolve_neg() if value.is_neg() else value).contiguous().view(-1, inner)
                )

            x = contiguous
        rest = placed.tensor(node.args[1]).view(-1, outer) if len(node.args) > 1 else None
        residual, gate = (None, rest) if self.layer.gated else (rest, None)
        layer = PlacedLayer(self.layer, placed.layer_choice.problem, x, out, residual, out, gate)
        step = ConvolutionStep(layer, placed.layer_choice)
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        self.check_layer(dim=2)
        self.check_types(node)
        expect(self.layer.linear and not self.layer.pooled and len(node.args) < 3, node.name)
        expect(self.layer.gated is self.gated, node.name)
        expect(len(node.args) == 2 or not self.gated, node.name)
        for rest in node.args[1:]:
            expect(is_dense(rest) and val(rest).shape == val(node).shape, node.name)
        outer, inner = self.layer.weights.weight.shape
        x = val(node.args[0]).shape
        expect(0 not in x and x[-1] == inner, node.name)
        expect((*x[:-1], outer) == tuple(val(node).shape), node.name)


def _is_residual(node: Node, other: Any, addition: Node) -> bool:
    if (
        other is node
        or not is_plain(other, None, MULTIPLIED)
        or addition.kwargs.get("alpha", 1) != 1
    ):
        return False
    return is_alike(node, other) and is_alike(addition, node)


def _dense_copy(rewriter: Rewriter, value: Any) -> Node:
    """Return a copy in the arena, at a known address, of a value that PyTorch computes."""
    return rewriter.insert(value, Dense(), value, val=value.meta["val"].contiguous())


def _recognise_addmm(rewriter: Rewriter, node: Node) -> None:
    """Replace bias + x @ weight, and the reshapes around it that flatten the rows of x."""
    weight, bias = rewriter.constant(node.args[2]), rewriter.constant(node.args[0])
    if weight is None or bias is None or weight.dtype not in MULTIPLIED:
        return
    dtypes = {weight.dtype}
    if argument(node, "alpha") != 1 or argument(node, "beta") != 1:
        return
    if not is_plain(node, 2, dtypes) or not is_plain(node.args[1], 2, dtypes):
        return
    inner, outer = weight.shape
    if bias.shape != (outer,) or bias.dtype is not weight.dtype or not weight.is_contiguous():
        return
    x, last, after = node.args[1], node, only_user(node)
    before = x.args[0] if isinstance(x, Node) and x.target is aten.reshape.default else None
    if (
        is_plain(before, None, dtypes)
        and after is not None
        and after.target is aten.reshape.default
    ):
        shape = *shape_of(before)[:-1], outer
        if shape == shape_of(after) and shape_of(before)[-1] == inner:
            x, last = before, after
    layer = Layer(rewriter.frozen(weight, bias, None, 1, transposed=True), linear=True)
    rewriter.replace(last, Linear(layer), x)


def _recognise_product(rewriter: Rewriter, node: Node) -> None:
    """Replace x @ weight or x @ weight.T, and an added bias."""
    x, given = node.args[:2]
    turned_back = _transposed(given)
    weight = rewriter.constant(given if turned_back is None else turned_back)
    if weight is None or weight.dim() != 2 or not weight.is_contiguous():
        return
    dtypes = {weight.dtype} & MULTIPLIED
    if not is_plain(x, None, dtypes) or not is_plain(node, None, dtypes):
        return
    if len(shape_of(x)) < 2:
        return
    bias, last, after = None, node, only_user(node)
    if after is not None and after.target is aten.add.Tensor and not after.kwargs:
        added = rewriter.constant(other_argument(after, node))
        row = shape_of(node)[-1:], weight.dtype
        if added is not None and (added.shape, added.dtype) == row and is_alike(node, after):
            bias, last = added, after
    frozen = rewriter.frozen(weight, bias, None, 1, transposed=turned_back is None)
    rewriter.replace(last, Linear(Layer(frozen, linear=True)), x)


def _transposed(node: Any) -> Node | None:
    """Return the matrix whose transpose a node is; None for other nodes."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    source = node.args[0]
    if not isinstance(source, Node) or len(shape_of(source)) != 2:
        return None
    if node.target in (aten.t.default, aten.numpy_T.default, aten.mT.default):
        return source
    if node.target is aten.transpose.int:
        return source if node.args[1] % 2 != node.args[2] % 2 else None  # type: ignore[operator]
    if node.target is aten.permute.default:
        return source if node.args[1] in ([1, 0], [-1, 0], [1, -2], [-1, -2]) else None
    return None


def _recognise(rewriter: Rewriter, node: Node) -> None:
    weight, bias_node = rewriter.constant(node.args[1]), argument(node, "bias")
    bias = rewriter.constant(bias_node)
    if weight is None or (bias is None) != (bias_node is None):
        return
    dtypes = {weight.dtype} & MULTIPLIED
    if not is_plain(node.args[0], None, dtypes) or not is_plain(node, None, dtypes):
        return
    if bias is not None and bias.dtype is not weight.dtype:
        return
    if weight.dim() == 2 and weight.is_contiguous():
        last, scale = _scale(rewriter, node, weight)
        layer = Layer(rewriter.frozen(weight, bias, scale, 1), linear=True)
        rewriter.replace(last, Linear(layer), node.args[0])


def _scale(rewriter: Rewriter, node: Node, weight: Tensor) -> tuple[Node, Norm | None]:
    """Return the last node of a linear layer, and the scale of the outputs if one follows."""
    user = only_user(node)
    if user is not None and user.target is aten.mul.Tensor and is_alike(node, user):
        factor = rewriter.constant(other_argument(user, node))
        if factor is not None and factor.shape == weight.shape[:1] and factor.dtype is weight.dtype:
            return user, Norm(None, None, factor, None, 0.0)
    return node, None
