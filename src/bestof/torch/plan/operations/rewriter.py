"""A traced graph while operations take the place of PyTorch's operators."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.layers.joined_weights import JoinedWeights
from bestof.torch.plan.trace.graph import behind, constant, fused

# The weights of a plan, by the tensors that they come from: the layers of all shapes share them.
Weights = dict[tuple[Any, ...], FrozenWeights]


class Rewriter:
    """The graph, its parameters, and the weights of all layers that the plan has met so far."""

    def __init__(self, module: GraphModule, weights: Weights) -> None:
        self.module, self._weights = module, weights
        self._earlier = set(map(id, weights.values()))

    def constant(self, node: Any) -> Tensor | None:
        """Return the parameter or buffer that a node reads; None for other nodes."""
        return constant(self.module, node)

    def frozen(
        self,
        weight: Tensor,
        bias: Tensor | None,
        norm: Norm | None,
        groups: int,
        transposed: bool = False,
    ) -> FrozenWeights:
        """Return the weights of a layer: the same object for the same tensors."""
        tensors = (weight, bias, *(norm[:4] if norm else ()))
        key = (*map(id, tensors), norm and norm.eps, groups, transposed)
        frozen = self._weights.get(key)
        if frozen is None:  # keeps the tensors, and so their ids
            frozen = self._weights[key] = FrozenWeights(weight, bias, norm, groups, transposed)
        return frozen

    def norm(self, node: Node) -> Norm | None:
        """Return the affine map of an evaluated batch norm; None for one by the batch's statistics.

        None, too, if a number of the norm is no parameter or buffer.
        """
        _, scale, shift, _, _, training, _, eps = node.args[:8]
        if training:
            return None
        mean, variance, a, b = (self.constant(node.args[position]) for position in (3, 4, 1, 2))
        if mean is None or variance is None:
            return None
        if (scale is not None and a is None) or (shift is not None and b is None):
            return None
        return Norm(mean, variance, a, b, float(eps))  # type: ignore[arg-type]  # a number

    def was_joined(self, parts: list[FrozenWeights]) -> bool | None:
        """Return whether an earlier shape joined these layers; None if none has met them."""
        if ("joined", *map(id, parts)) in self._weights:
            return True
        return False if any(id(part) in self._earlier for part in parts) else None

    def joined(self, parts: list[FrozenWeights]) -> FrozenWeights:
        """Return the weights of several layers as one: the same object for the same layers."""
        key = ("joined", *map(id, parts))
        frozen = self._weights.get(key)
        if frozen is None:  # keeps the parts, and so their ids
            frozen = self._weights[key] = JoinedWeights(parts)
        return frozen

    def norm_alone(self, norm: Norm, ones: Tensor) -> FrozenWeights:
        """Return the weights `ones` with a norm: the same object for the same norm."""
        key = (*map(id, norm[:4]), norm.eps)
        frozen = self._weights.get(key)
        if frozen is None:
            frozen = self._weights[key] = FrozenWeights(ones, None, norm, len(ones))
        return frozen

    def insert(self, after: Node, operation: Any, *args: Any, val: Any) -> Node:
        """Return a new node for an operation, behind another node."""
        with after.graph.inserting_after(behind(after)):
            node = after.graph.call_function(fused, args, name=operation.name)
        node.meta = {
            "val": val,
            "operation": operation,
            "name": after.meta.get("name", after.name),
        }
        return node

    def replace(self, node: Node, operation: Any, *args: Any) -> Node:
        """Put an operation in the place of a node, with the same value."""
        made = self.insert(node, operation, *args, val=node.meta["val"])
        node.replace_all_uses_with(made)
        return made

    def absorb(self, node: Node, user: Node, operation: Any, *args: Any) -> Node:
        """Put one operation in the place of a node and of the only one that reads it."""
        made = self.replace(user, operation, *args)
        made.meta["name"] = node.meta["name"]
        self.module.graph.erase_node(user)
        self.module.graph.erase_node(node)
        return made
