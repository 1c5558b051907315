"""Let one step compute squeeze-and-excitation."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from bestof.torch.plan.layers.activations import recognise_activation
from bestof.torch.plan.operations.excitation import Excitation, is_dense_parameter
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.trace.graph import (
    argument,
    is_plain,
    only_user,
    other_argument,
    pair,
    shape_of,
)

aten = torch.ops.aten
_GATES = {aten.sigmoid.default: False, aten.hardsigmoid.default: True}
_POOLINGS = (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)


def unite_excitations(rewriter: Rewriter) -> None:
    """Replace x * sigmoid(layer(activation(layer(mean of x)))) by one operation.

    Both layers are convolutions of single pixels. Six steps read x three times, and the product of
    PyTorch takes as long as a convolution of 1x1: 1.4 of the 11.2 ms of EfficientNet-B0.
    """
    for node in list(rewriter.module.graph.nodes):
        if node.target is aten.mul.Tensor and is_plain(node, 4):
            for gate in node.args:
                x = other_argument(node, gate)
                found = _excitation(rewriter, gate, x, node)
                if found is not None:
                    operation, parameters = found
                    rewriter.replace(node, operation, x, *parameters)
                    break


def _excitation(
    rewriter: Rewriter, gate: Any, x: Any, product: Node
) -> tuple[Excitation, list[Any]] | None:
    if not is_plain(x, 4) or x.op == "get_attr" or shape_of(x) != shape_of(product):
        return None
    if not isinstance(gate, Node) or gate.target not in _GATES or only_user(gate) is not product:
        return None
    excite = _layer(rewriter, gate.args[0])
    inner: Any = None if excite is None else excite.args[0]
    activation = recognise_activation(inner) if isinstance(inner, Node) else None
    squeeze = _layer(rewriter, inner.args[0]) if activation and only_user(inner) is excite else None
    if excite is None or squeeze is None or activation is None:
        return None
    if only_user(squeeze) is not inner or not _is_mean(squeeze.args[0], x):
        return None
    parameters = [argument(one, name) for one in (squeeze, excite) for name in ("weight", "bias")]
    return Excitation(_GATES[gate.target], *activation), parameters


def _layer(rewriter: Rewriter, node: Any) -> Node | None:
    """Return a node that is a convolution of one pixel by parameters that the kernel can read."""
    if not is_plain(node, 4) or node.target is not aten.conv2d.default:
        return None
    weight, bias = argument(node, "weight"), argument(node, "bias")
    given = [rewriter.constant(one) for one in (weight, bias) if one is not None]
    if any(one is None or not is_dense_parameter(one) for one in given):
        return None
    whole = argument(node, "groups") == 1 and pair(argument(node, "padding")) == (0, 0)
    pixels = shape_of(weight)[2:], shape_of(node)[2:], shape_of(node.args[0])[2:]
    return node if whole and set(pixels) == {(1, 1)} and len(node.users) == 1 else None


def _is_mean(node: Any, x: Node) -> bool:
    """Return whether a node is the mean over the pixels of x, and nothing else reads it."""
    if not isinstance(node, Node) or node.args[0] is not x or len(node.users) != 1:
        return False
    if node.target in _POOLINGS:
        return shape_of(node)[2:] == (1, 1)
    if node.target is aten.mean.dim and argument(node, "dtype") is None:
        dims: Any = node.args[1]
        return sorted(one % 4 for one in dims) == [2, 3] and bool(argument(node, "keepdim"))
    return False
