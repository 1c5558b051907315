"""Operators that the configuration leaves to PyTorch, in plans as in eager calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from bestof.torch.plan.trace.mutation import aliased_argument
from bestof.torch.plan.trace.skipped_modules import is_of_skipped
from bestof.torch.rows.offer import is_out

aten = torch.ops.aten

# The name that an operation has in eager calls, by the operator that a trace has of it.
_NAMES = {
    aten.conv2d: "convolution forward",
    aten.convolution: "convolution forward",
    aten.linear: "product",
    aten.addmm: "product",
    aten.matmul: "product",
    aten.mm: "product",
    aten.scaled_dot_product_attention: "attention",
    aten.max_pool2d: "max pooling",
    aten.avg_pool2d: "average pooling",
    aten.adaptive_avg_pool2d: "average pooling",
    aten._adaptive_avg_pool2d: "average pooling",
    aten.mean: "average pooling",
    aten.layer_norm: "layer norm",
}


def is_left_to_pytorch(node: Node) -> bool:
    """Return whether `kernel.without` names the operation of a node that calls an operator."""
    target = node.target
    return isinstance(target, OpOverload) and is_out(_NAMES.get(target.overloadpacket, ""))


class _Hidden:
    """Takes the place of an operator, so that no rule of fusion knows the node."""

    def __init__(self, operator: OpOverload[..., Any]) -> None:
        self.operator, self._schema = operator, operator._schema
        self.__name__ = operator.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


@contextmanager
def skipped_are_hidden(graph: Graph) -> Iterator[None]:
    """Hide the operators of skipped modules from fusion. Views stay: they compute nothing."""
    for node in graph.nodes:
        target = node.target
        if (
            isinstance(target, OpOverload)
            and is_of_skipped(node)
            and target.namespace == "aten"
            and aliased_argument(node) is None
        ):
            node.target = _Hidden(target)
    yield
    for node in graph.nodes:
        if isinstance(node.target, _Hidden):
            node.target = node.target.operator
