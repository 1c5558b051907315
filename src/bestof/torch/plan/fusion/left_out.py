"""Operators that the configuration leaves to PyTorch, in plans as in eager calls."""

from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch.fx import Node

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
