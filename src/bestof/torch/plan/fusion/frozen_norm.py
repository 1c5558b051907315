"""Replace frozen batch norms that models spell out by PyTorch's operator, which layers take in."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    RESHAPING,
    is_plain,
    other_argument,
    shape_of,
    value_of,
)

aten = torch.ops.aten

# Views of a vector that keep the order of its numbers.
_VIEWS = RESHAPING | {aten.view.default, aten.unsqueeze.default}


class _Slope(NamedTuple):
    """The node of weight / sqrt(variance + eps), and what it is made of."""

    node: Node
    weight: Node
    variance: Node
    eps: float


def unite_frozen_norms(graph: Graph) -> None:
    """Replace x s + (bias - mean s), with s = weight / sqrt(variance + eps), in place.

    `FrozenBatchNorm2d` of torchvision, DETR and detectron2 computes this from four buffers, one
    number a channel, whose views have the shape [1, C, 1, 1]. A convolution takes the operator in.
    Unread nodes stay; the caller eliminates them.
    """
    for total in list(graph.nodes):
        for product, shift in _pairs(total, aten.add.Tensor):
            for x, slope in _pairs(product, aten.mul.Tensor):
                _unite(graph, total, x, slope, shift)


def _unite(graph: Graph, total: Node, x: Any, slope: Any, shift: Any) -> None:
    if not is_plain(x, 4, MULTIPLIED):
        return
    channels, dtype = shape_of(x)[1], x.meta["val"].dtype
    if not all(_is_by_channel(one, channels) for one in (slope, shift)):
        return
    found, difference = _slope(_vector(slope)), _vector(shift)
    if found is None or difference is None or difference.target is not aten.sub.Tensor:
        return
    bias, taken = (_vector(one) for one in difference.args[:2])
    means = [
        _vector(one)
        for one, other in _pairs(taken, aten.mul.Tensor)
        if _vector(other) is found.node
    ]
    vectors = found.weight, bias, *means, found.variance
    if len(vectors) != 4 or difference.kwargs:
        return
    if not all(_is_buffer(one, channels, dtype) for one in vectors):
        return
    with graph.inserting_before(total):
        arguments = (x, *vectors, False, 0.0, found.eps, False)
        norm = graph.call_function(aten.batch_norm.default, arguments)
    norm.meta = dict(total.meta)
    total.replace_all_uses_with(norm)


def _slope(node: Node | None) -> _Slope | None:
    """Return the parts of weight * rsqrt(variance + eps), or of weight / sqrt(variance + eps)."""
    for weight, root in _pairs(node, aten.mul.Tensor):
        inner = _vector(root)
        if inner is not None and inner.target is aten.rsqrt.default:
            return _slope_of(node, weight, inner.args[0])
    if node is not None and node.target is aten.div.Tensor:
        inner = _vector(node.args[1])
        if inner is not None and inner.target is aten.sqrt.default:
            return _slope_of(node, node.args[0], inner.args[0])
    return None


def _slope_of(node: Any, weight: Any, total: Any) -> _Slope | None:
    added, by = _vector(total), _vector(weight)
    if added is None or by is None or added.target is not aten.add.Tensor or added.kwargs:
        return None
    variance, eps = _vector(added.args[0]), added.args[1]
    if variance is None or not isinstance(eps, float) or eps < 0:
        return None
    return _Slope(node, by, variance, eps)


def _pairs(node: Any, target: Any) -> list[tuple[Any, Any]]:
    """Return the two arguments of a sum or product, in both orders; nothing for other nodes."""
    if not isinstance(node, Node) or node.target is not target or node.kwargs:
        return []
    return [(one, other_argument(node, one)) for one in node.args if isinstance(one, Node)]


def _vector(node: Any) -> Node | None:
    """Return the node behind views that keep the order; None if a value is no node."""
    while isinstance(node, Node) and node.target in _VIEWS:
        node = node.args[0]
    return node if isinstance(node, Node) else None


def _is_by_channel(node: Any, channels: int) -> bool:
    value = value_of(node)
    return value is not None and tuple(value.shape) in ((1, channels, 1, 1), (channels, 1, 1))


def _is_buffer(node: Node | None, channels: int, dtype: torch.dtype) -> bool:
    if node is None or node.op != "get_attr":
        return False
    value = value_of(node)
    return value is not None and tuple(value.shape) == (channels,) and value.dtype is dtype
