"""Linear layers whose result a gate multiplies, as in the gated layers of language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node

from bestof.torch.plan.layers.activations import recognise_activation
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.operations.checks import is_alike, is_dense, operation_of
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.trace.graph import only_user

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class GatedLinear(Linear):
    """activation(x w + bias) * gate. Its node's arguments: x and the gate.

    The gate is the result of another operation, such as a linear layer. The result does not lie in
    the gate's place: a product writes incomplete sums to the place of its result.
    """

    name: ClassVar[str] = "gated linear"
    gated: ClassVar[bool] = True
    overwrites_last: ClassVar[bool] = False

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operator that may multiply by a gate."""
        return {aten.mul.Tensor: _recognise}

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take nothing in: the gate comes last."""


def _recognise(rewriter: Rewriter, node: Node) -> None:
    """Replace a product of two results, one of which is a linear layer with an activation."""
    for activated, gate in (node.args, reversed(node.args)):
        found = _activated_layer(activated)
        if found is None or not is_dense(gate) or not is_alike(node, gate):
            continue
        linear, layer = found
        if is_alike(node, linear) and gate is not linear:
            gated = GatedLinear(replace(layer, gated=True))
            made = rewriter.replace(node, gated, linear.args[0], gate)
            made.meta["name"] = linear.meta["name"]
            return


def _activated_layer(node: Any) -> tuple[Node, Layer] | None:
    """Return a linear layer and its activated value, if nothing else reads either."""
    found = recognise_activation(node) if isinstance(node, Node) else None
    if found is None:
        return None
    linear = node.args[0]
    operation = operation_of(linear)
    if not isinstance(linear, Node) or not isinstance(operation, Linear) or operation.gated:
        return None
    if only_user(node) is None or only_user(linear) is not node:
        return None
    name, slope = found
    return linear, replace(operation.layer, activation=name, slope=slope)
