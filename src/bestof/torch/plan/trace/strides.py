"""Operators whose meaning depends on the strides of their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten = torch.ops.aten

VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
_STRICT = {
    *VIEWS,
    aten.view.dtype,
    aten.as_strided.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
}


def reads_strides(node: Node) -> bool:
    """Return whether a node reads strides, not only values; so may operators outside of PyTorch."""
    outside = node.op == "call_function" and getattr(node.target, "namespace", "aten") != "aten"
    return node.target in _STRICT or outside


def with_strides(value: Any, strides: tuple[int, ...]) -> Any:
    """Return a tensor with these strides: itself, or a copy."""
    if not isinstance(value, Tensor) or value.stride() == strides:
        return value
    return copied(value, strides)


def copied(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a copy with these strides. An expanded axis, whose stride is 0, stays expanded."""
    whole = value.shape
    for axis, stride in enumerate(strides):
        if stride == value.stride(axis) == 0:
            value = value.narrow(axis, 0, min(1, value.shape[axis]))
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
    return copy.expand(whole)
