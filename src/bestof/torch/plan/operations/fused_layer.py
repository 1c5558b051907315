"""What convolutions and linear layers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.torch.plan.activations import activation_of, recognise_activation
from bestof.torch.plan.frozen_weights import FrozenWeights
from bestof.torch.plan.graph import MULTIPLIED, only_user, shape_of
from bestof.torch.plan.layer import Layer
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.operation import Operation, decoded_fields, encoded_fields
from bestof.torch.plan.problem import FusedProblem, problem_of
from bestof.torch.plan.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class FusedLayer(Operation):
    """A layer whose algorithm is chosen. Its node's arguments: x, and the residual or gate."""

    layer: Layer

    def problem(self, node: Node, accuracy: Accuracy) -> FusedProblem:
        """Return what the algorithm is chosen for."""
        residual = len(node.args) > 1 and not self.layer.gated
        return problem_of(self.layer, accuracy, self._input_shape(node), residual)

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
        expect(weights.groups == layer.groups, "groups")
        right = bias is None or (bias.shape == weight.shape[:1] and bias.dtype is weight.dtype)
        expect(right, "bias")
        activation_of(layer.activation)
        expect(isinstance(layer.slope, float | int), "slope")
        expect(isinstance(layer.gated, bool), "gate")

    def check_types(self, node: Node) -> None:
        """Raise ValueError if the input or the result has another type than the weight."""
        dtypes = {val(one).dtype for one in (node, *node.args)}
        expect(dtypes == {self.layer.weights.weight.dtype}, node.name)

    def encode(self, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
        return {"name": self.name, **encoded_fields(self.layer, number)}

    @classmethod
    def decode(cls, content: dict[str, Any], weights: list[FrozenWeights]) -> FusedLayer:
        return cls(Layer(**decoded_fields(content, weights)))
