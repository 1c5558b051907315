"""Linear layers with the activation that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.algorithms.algorithm import Site
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.graph import argument, is_plain, shape_of
from bestof.torch.plan.layer import Layer
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.fused_layer import FusedLayer
from bestof.torch.plan.place import Place
from bestof.torch.plan.rewriter import Rewriter
from bestof.torch.plan.step import Step

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Linear(FusedLayer):
    """A linear layer: a convolution of one pixel a row. Its input may come from PyTorch."""

    name: ClassVar[str] = "linear"

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operator that may become a linear layer."""
        return {aten.linear.default: _recognise}

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take an activation that follows into the layer."""
        self.absorb_activation(rewriter, node)

    def _input_shape(self, node: Node) -> tuple[int, ...]:
        *rows, features = shape_of(node.args[0])
        return prod(rows), features

    def bind(self, node: Node, place: Place) -> Step:
        """Return the step; an input outside of the arena is looked up at each call."""
        outer, inner = self.layer.weights.weight.shape
        out = place.out.view(-1, outer)
        x: Tensor | Callable[[], Tensor]
        if place.is_contiguous(node.args[0]):
            x = place.tensor(node.args[0]).view(-1, inner)
        else:
            find = place.finder(node.args[0])

            def contiguous() -> Tensor:
                value: Tensor = find()
                return (
                    (value.resolve_neg() if value.is_neg() else value).contiguous().view(-1, inner)
                )

            x = contiguous
        site = Site(self.layer, place.choice.problem, x, out, None, out)
        step = ConvolutionStep(site, place.choice)
        return place.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        self.check_layer(dim=2)
        self.check_types(node)
        expect(self.layer.linear and not self.layer.pooled and len(node.args) == 1, node.name)
        outer, inner = self.layer.weights.weight.shape
        x = val(node.args[0]).shape
        expect(0 not in x and x[-1] == inner, node.name)
        expect((*x[:-1], outer) == tuple(val(node).shape), node.name)


def _recognise(rewriter: Rewriter, node: Node) -> None:
    weight, bias_node = rewriter.constant(node.args[1]), argument(node, "bias")
    bias = rewriter.constant(bias_node)
    if weight is None or (bias is None) != (bias_node is None):
        return
    if not is_plain(node.args[0]) or not is_plain(node):
        return
    if weight.dim() == 2 and weight.dtype is torch.float32 and weight.is_contiguous():
        layer = Layer(rewriter.frozen(weight, bias, None, 1), linear=True)
        rewriter.replace(node, Linear(layer), node.args[0])
