"""What convolutions and linear layers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.torch.plan.layers.activations import activation_of, recognise_activation
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import problem_of
from bestof.torch.plan.memory.channel_part import part_of
from bestof.torch.plan.operations.checks import expect, expect_pair, val
from bestof.torch.plan.operations.operation import Operation, decoded_fields, encoded_fields
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.convolution_step import LayerChoice
from bestof.torch.plan.trace.graph import MULTIPLIED, only_user, shape_of


@dataclass(frozen=True, slots=True)
class FusedLayer(Operation):
    """A layer whose algorithm is chosen. Its node's arguments: x, and the residual or gate."""

    layer: Layer

    def choice(self, node: Node, accuracy: Accuracy) -> LayerChoice:
        """Return the choice of the algorithm."""
        residual = len(node.args) > 1 and not self.layer.gated
        shape, planes, part = self._input_shape(node), self.reads_planes(node), part_of(node)
        pitch = 0 if part is None else shape_of(part.whole)[1]
        problem = problem_of(self.layer, accuracy, shape, residual, planes, pitch)
        return LayerChoice(problem, self.layer.weights)

    def _input_shape(self, node: Node) -> tuple[int, ...]:
        return shape_of(node.args[0])

    def absorb_activation(self, rewriter: Rewriter, node: Node) -> Node:
        """Take an activation that follows into the layer; return the node of the result."""
        user = only_user(node)
        found = None if user is None else recognise_activation(user)
        if user is None or found is None:
            return node
        name, slope = found
        changed = type(self)(replace(self.layer, activation=name, slope=slope))
        return rewriter.absorb(node, user, changed, *node.args)

    def check_layer(self, dim: int) -> None:
        """Raise ValueError if the weights (of `dim` axes) or the activation cannot be used."""
        layer, weights = self.layer, self.layer.weights
        weight, bias = weights.weight, weights.bias
        expect(weight.dim() == dim and weight.dtype in MULTIPLIED, "weight")
        expect(weight.numel() > 0, "weight")
        for least, pair in zip((1, 0, 1), layer.geometry, strict=False):
            expect_pair(pair, least, "stride, padding or dilation")
        whole = type(layer.groups) is int and layer.groups > 0
        expect(whole and type(weights.groups) is int and weights.groups == layer.groups, "groups")
        check_norm(weights.norm, weight.shape[:1])
        right = bias is None or (bias.shape == weight.shape[:1] and bias.dtype is weight.dtype)
        expect(right, "bias")
        activation_of(layer.activation)
        expect(type(layer.slope) in (float, int) and abs(layer.slope) < 2**127, "slope")
        flags = layer.linear, layer.pooled, layer.gated
        expect(all(isinstance(one, bool) for one in flags), "kind of layer")
        # Kernels compute a linear layer as a convolution of one pixel a row.
        expect(not layer.linear or layer.geometry == Layer(weights).geometry, "linear layer")

    def check_types(self, node: Node) -> None:
        """Raise ValueError if the input or the result has another type than the weight."""
        dtypes = {val(one).dtype for one in (node, *node.args)}
        expect(dtypes == {self.layer.weights.weight.dtype}, node.name)

    def encode(self, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
        return {"name": self.name, **encoded_fields(self.layer, number)}

    @classmethod
    def decode(cls, content: dict[str, Any], weights: list[FrozenWeights]) -> FusedLayer:
        return cls(Layer(**decoded_fields(content, weights)))


def check_norm(norm: Norm | None, channels: tuple[int, ...]) -> None:
    """Raise ValueError if a norm does not have one number a channel, or cannot be computed."""
    if norm is None:
        return
    *tensors, eps = norm
    given = [one for one in tensors if one is not None]
    expect(all(one.shape == channels and one.is_floating_point() for one in given), "norm")
    expect(type(eps) in (float, int), "norm")
    expect((norm.mean is None) == (norm.variance is None), "norm")
    expect(norm.mean is not None or (norm.scale is not None and norm.shift is None), "norm")
