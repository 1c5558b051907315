"""Replace operators that together compute one operation by PyTorch's operator for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from bestof.torch.plan.layers.activations import recognise_activation
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    is_plain,
    only_user,
    other_argument,
    shape_of,
)

aten = torch.ops.aten


def unite(graph: Graph) -> None:
    """Replace GELU by its formula with tanh, RMS norm, SiLU, hard swish and hard sigmoid, in place.

    Models spell them out: GELU takes eight passes over memory, RMS norm six, hard swish four. In
    bfloat16 each pass of GELU rounds its result; the operator rounds once. SiLU by two operators
    took half of the time of EfficientNet-B0.
    Unread nodes stay; the caller eliminates them.
    """
    for node in list(graph.nodes):
        if node.target is aten.tanh.default:
            _unite_gelu(graph, node)
        elif node.target is aten.sigmoid.default:
            _unite_silu(graph, node)
        elif recognise_activation(node) == ("relu6", 0.0):
            _unite_hard_swish(graph, node)
        elif node.target is aten.rsqrt.default:
            _unite_rms_norm(graph, node)


def _unite_gelu(graph: Graph, tanh: Node) -> None:
    """Replace 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    total = _scaled(tanh.args[0], math.sqrt(2 / math.pi))
    if total is None or total.target is not aten.add.Tensor or len(total.args) != 2:
        return
    if total.kwargs:  # an alpha
        return
    x, cubic = total.args
    cube = _scaled(cubic, 0.044715)
    if not isinstance(x, Node) or cube is None or not _is_power(cube, x, 3):
        return
    shifted = only_user(tanh)
    if shifted is None or shifted.target is not aten.add.Tensor or shifted.args != (tanh, 1.0):
        return
    if shifted.kwargs:
        return
    last = only_user(shifted)
    if last is None or last.target is not aten.mul.Tensor or last.kwargs:
        return
    if is_plain(x, None, MULTIPLIED) and _scaled(other_argument(last, shifted), 0.5) is x:
        _replace(graph, last, aten.gelu.default, (x,), {"approximate": "tanh"})


def _unite_silu(graph: Graph, sigmoid: Node) -> None:
    """Replace x sigmoid(x)."""
    x = sigmoid.args[0]
    last = _product_with(sigmoid, x)
    if last is not None and is_plain(x, None, MULTIPLIED):
        _replace(graph, last, aten.silu.default, (x,), {})


def _unite_hard_swish(graph: Graph, relu6: Node) -> None:
    """Replace x relu6(x + 3) / 6, in either order; and relu6(x + 3) / 6 alone, a hard sigmoid."""
    total = relu6.args[0]
    if not isinstance(total, Node) or total.target is not aten.add.Tensor or total.kwargs:
        return
    x, three = total.args
    if isinstance(three, Node) or three != 3 or not is_plain(x, None, MULTIPLIED):
        return
    product = _product_with(relu6, x)
    if product is not None:
        last = _sixth_of(product)
        if last is not None:
            _replace(graph, last, aten.hardswish.default, (x,), {})
        return
    sigmoid = _sixth_of(relu6)
    if sigmoid is None:
        return
    product = _product_with(sigmoid, x)
    if product is None:
        _replace(graph, sigmoid, aten.hardsigmoid.default, (x,), {})
    else:
        _replace(graph, product, aten.hardswish.default, (x,), {})


def _product_with(node: Node, x: Any) -> Node | None:
    """Return the product of a node with x, if nothing else reads the node."""
    last = only_user(node)
    if last is None or last.target is not aten.mul.Tensor or last.kwargs:
        return None
    return last if other_argument(last, node) is x else None


def _sixth_of(node: Node) -> Node | None:
    """Return the node that divides another one by 6, if nothing else reads that one."""
    last = only_user(node)
    if last is None or last.kwargs:
        return None
    divides = last.target is aten.div.Tensor and tuple(last.args) == (node, 6)
    return last if divides or _scaled(last, 1 / 6) is node else None


def _unite_rms_norm(graph: Graph, rsqrt: Node) -> None:
    """Replace x rsqrt(mean(x^2) + eps), and a product with a scale behind it.

    x may be bfloat16 that is widened to float32, if the result is rounded back before the scale.
    """
    total = rsqrt.args[0]
    if not isinstance(total, Node) or total.target is not aten.add.Tensor or total.kwargs:
        return
    mean, eps = total.args
    if not isinstance(mean, Node) or mean.target is not aten.mean.dim or mean.kwargs:
        return
    if not isinstance(eps, float) or eps < 0 or tuple(mean.args[1:]) != ([-1], True):
        return
    last = only_user(rsqrt)
    if last is None or last.target is not aten.mul.Tensor:
        return
    x = other_argument(last, rsqrt)
    if not isinstance(x, Node) or not is_plain(x) or not _is_power(mean.args[0], x, 2):
        return
    x, last = _between_casts(x, last)
    size, scale, after = shape_of(x)[-1], None, only_user(last)
    if after is not None and after.target is aten.mul.Tensor:
        given, dtypes = other_argument(after, last), {x.meta["val"].dtype}
        if is_plain(given, 1, dtypes) and given.op == "get_attr" and shape_of(given) == (size,):
            scale, last = given, after
    _replace(graph, last, aten.rms_norm.default, (x, [size], scale, eps), {})


def _between_casts(wide: Node, last: Node) -> tuple[Node, Node]:
    """Return the bfloat16 value that `wide` widens, and the node that rounds `last` to bfloat16.

    Without such casts, return `wide` and `last` themselves.
    """
    rounded, halves = only_user(last), {torch.bfloat16}
    if wide.target is not aten.to.dtype or rounded is None or rounded.target is not aten.to.dtype:
        return wide, last
    given = wide.args[0]
    if not is_plain(given, None, halves) or not is_plain(rounded, None, halves):
        return wide, last
    assert isinstance(given, Node)  # it is plain
    return given, rounded


def _scaled(node: Any, factor: float) -> Node | None:
    """Return a of a * factor; None for other nodes."""
    if not isinstance(node, Node) or node.target is not aten.mul.Tensor or len(node.args) != 2:
        return None
    value, number = node.args
    same = isinstance(number, float) and math.isclose(number, factor, rel_tol=1e-7)
    return value if same and isinstance(value, Node) else None


def _is_power(node: Any, x: Node, exponent: int) -> bool:
    """Return whether a node is a power of x."""
    if not isinstance(node, Node) or node.target is not aten.pow.Tensor_Scalar:
        return False
    return node.args[0] is x and argument(node, "exponent") == exponent


def _replace(
    graph: Graph, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(target, args, kwargs)
    made.meta = {"val": node.meta["val"]}
    node.replace_all_uses_with(made)
