"""Convolutions, linear layers and poolings of a trace, with the operators around them, as operations of our kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from bestof.torch.plan.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.operation import Convolution, Pair, Pooling, may_be_pooled

aten = torch.ops.aten

# What a node of the graph means after fusion; `meta["operation"]` holds the value, arguments are (x, residual).
Operations = dict[tuple[Any, ...], FrozenWeights]


def convolution(*_: Any) -> Any:
    """Marks a node as a Convolution; never called."""
    raise AssertionError


def pooling(*_: Any) -> Any:
    """Marks a node as a Pooling; never called."""
    raise AssertionError


def fuse(module: GraphModule, weights: Operations) -> None:
    """Rewrite the graph of a trace in place; `weights` remembers the layers met before, so that shapes share them."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = (
                aten.reshape.default
            )  # a view where strides allow it; those of a plan are its own
        if _is_identity(node) and not any(map(reads_strides, node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op == "call_function" and (recognise := _RECOGNISED.get(node.target)) is not None:
            recognise(module, node, weights)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target is convolution:
            _fuse_epilogue(node)
    graph.eliminate_dead_code()


def pooled_convolutions(nodes: Iterable[Node]) -> dict[Node, Node]:
    """The convolutions whose step writes what a pooling makes of their results, and these poolings.

    64 channels @224 and their pooling take 0.88 of the time in batches of 8: 103 MB are neither written nor read.
    """
    return {
        given: node
        for node in nodes
        if node.target is pooling
        and isinstance(given := node.args[0], Node)
        and given.target is convolution
        and list(given.users) == [node]
        and len(given.args) == 1
        and may_be_pooled(given.meta["operation"], node.meta["operation"])
    }


def drop_unread_attributes(module: GraphModule) -> None:
    """Let go of the parameters and buffers that no node reads any more: they were folded, or are an operation's."""
    read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for own in (module._parameters, module._buffers):
        for name in list(own):
            if name not in read:
                del own[name]


def reads_strides(node: Node) -> bool:
    """Whether what a node means depends on strides, not on values alone; taken for granted of operators that are not
    PyTorch's own."""
    return node.target in _STRICT or (
        node.op == "call_function" and getattr(node.target, "namespace", "aten") != "aten"
    )


_VIEWS = {aten.view.default, aten._unsafe_view.default}
_STRICT = {
    *_VIEWS,
    aten.view.dtype,
    aten.as_strided.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
}


def _constant(module: GraphModule, node: Any) -> Tensor | None:
    """The parameter or buffer that a node reads, None for what is computed."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(module)
    return value if isinstance(value, Tensor) else None


def _val(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _is_plain(node: Any, dim: int | None = None) -> bool:
    """Whether our kernels read and write it: dense float32 on the CPU, nothing empty but the batch."""
    value = _val(node)
    return (
        value is not None
        and value.dtype is torch.float32
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and (dim is None or value.dim() == dim)
        and 0 not in value.shape
    )


def _argument(node: Node, name: str) -> Any:
    """An argument by its name in the schema, its default where it was not given."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, argument.default_value)
    raise KeyError(name)


def _is_identity(node: Node) -> bool:
    if node.op != "call_function":
        return False
    target = node.target
    if target in _IDENTITIES:
        return True
    if target is aten.dropout.default or target is aten.feature_dropout.default:
        return not node.args[2]
    given, result = _val(node.args[0] if node.args else None), _val(node)
    if given is None or result is None:
        return False
    same = (
        given.shape == result.shape
        and given.dtype is result.dtype
        and given.device == result.device
    )
    return same and target in _IDENTITIES_OF_SHAPE


# The graph is pure and layouts are the plan's own, so copies and aliases say nothing.
_IDENTITIES = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
}
_IDENTITIES_OF_SHAPE = {
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_max_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten._to_copy.default,
    aten.expand.default,
    aten.flatten.using_ints,
    aten.view.default,
    aten.reshape.default,
}


# What becomes an operation of ours


def _remembered(
    weights: Operations, weight: Tensor, bias: Tensor | None, norm: Norm | None, groups: int
) -> FrozenWeights:
    key = (id(weight), id(bias), *(map(id, norm[:4]) if norm else ()), norm and norm.eps, groups)
    frozen = weights.get(key)
    if frozen is None:
        frozen = weights[key] = FrozenWeights(
            weight, bias, norm, groups
        )  # keeps the tensors, and so their ids
    return frozen


def _replace(node: Node, marker: Callable[..., Any], operation: object, *args: Any) -> Node:
    graph = node.graph
    with graph.inserting_after(node):
        fused = graph.call_function(marker, args)
    fused.meta = {
        "val": node.meta["val"],
        "operation": operation,
        "name": node.meta.get("name", node.name),
    }
    node.replace_all_uses_with(fused)
    return fused


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def _recognise_convolution(module: GraphModule, node: Node, weights: Operations) -> None:
    x = node.args[0]
    weight, bias_node = _constant(module, node.args[1]), _argument(node, "bias")
    bias = _constant(module, bias_node)
    if (
        weight is None
        or (bias_node is not None and bias is None)
        or not _is_plain(x, 4)
        or not _is_plain(node, 4)
    ):
        return
    if node.target is aten.convolution.default and (node.args[6] or any(node.args[7])):  # type: ignore[arg-type]
        return
    padding = _argument(node, "padding")
    if isinstance(padding, str) or weight.dtype is not torch.float32:
        return
    groups = _argument(node, "groups")
    norm, last, after = None, node, _only_user(node)
    if after is not None and after.target in _NORMS and after.args[0] is node:
        norm = _norm(module, after)
        last = after if norm is not None else node
    operation = Convolution(
        _remembered(weights, weight, bias, norm, groups),
        _pair(_argument(node, "stride")),
        _pair(padding),
        _pair(_argument(node, "dilation")),
        groups,
    )
    _replace(last, convolution, operation, x)


def _recognise_linear(module: GraphModule, node: Node, weights: Operations) -> None:
    weight, bias_node = _constant(module, node.args[1]), _argument(node, "bias")
    bias = _constant(module, bias_node)
    if (
        weight is None
        or (bias_node is not None and bias is None)
        or not _is_plain(node.args[0])
        or not _is_plain(node)
    ):
        return
    if weight.dim() == 2 and weight.dtype is torch.float32 and weight.is_contiguous():
        operation = Convolution(_remembered(weights, weight, bias, None, 1), linear=True)
        _replace(node, convolution, operation, node.args[0])


def _recognise_norm(module: GraphModule, node: Node, weights: Operations) -> None:
    """A norm that no convolution took in is a depthwise convolution of one pixel."""
    if not _is_plain(node, 4) or not _is_plain(node.args[0], 4) or not node.users:
        return
    norm = _norm(module, node)
    if norm is not None:
        key = (*map(id, norm[:4]), norm.eps)
        frozen = weights.get(key)
        if frozen is None:
            ones = torch.ones(norm.mean.numel(), 1, 1, 1)
            frozen = weights[key] = FrozenWeights(ones, None, norm, norm.mean.numel())
        _replace(node, convolution, Convolution(frozen, groups=frozen.groups), node.args[0])


def _norm(module: GraphModule, node: Node) -> Norm | None:
    """The affine map of an evaluated batch norm, None where it uses the batch's own statistics."""
    training = node.args[5]
    if training:
        return None
    scale, shift = node.args[1], node.args[2]
    tensors = [_constant(module, node.args[position]) for position in (3, 4, 1, 2)]
    if tensors[0] is None or tensors[1] is None:
        return None
    if (scale is not None and tensors[2] is None) or (shift is not None and tensors[3] is None):
        return None
    return Norm(tensors[0], tensors[1], tensors[2], tensors[3], float(node.args[7]))  # type: ignore[arg-type]


def _recognise_pooling(_: GraphModule, node: Node, __: Operations) -> None:
    if not _is_plain(node.args[0], 4) or not _is_plain(node, 4):
        return
    x = node.args[0]
    kernel = _pair(node.args[1])
    stride = _pair(_argument(node, "stride") or kernel)
    padding = _pair(_argument(node, "padding"))
    if node.target is aten.max_pool2d.default:
        fits, kind, counted = _pair(_argument(node, "dilation")) == (1, 1), "max", True
    else:
        fits, kind = _argument(node, "divisor_override") is None, "average"
        counted = bool(_argument(node, "count_include_pad"))
    h, w = _val(x).shape[2:]  # type: ignore[union-attr]
    floor = tuple(
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip((h, w), padding, kernel, stride, strict=True)
    )
    if fits and floor == tuple(_val(node).shape[2:]):  # type: ignore[union-attr]  # else rounded up: ceil_mode
        _replace(node, pooling, Pooling(kind, kernel, stride, padding, counted), x)


def _recognise_adaptive(_: GraphModule, node: Node, __: Operations) -> None:
    if not _is_plain(node.args[0], 4) or not _is_plain(node, 4):
        return
    given, wanted = _val(node.args[0]).shape[2:], _val(node).shape[2:]  # type: ignore[union-attr]
    if given[0] % wanted[0] == 0 and given[1] % wanted[1] == 0:
        kernel = given[0] // wanted[0], given[1] // wanted[1]
        _replace(node, pooling, Pooling("average", kernel, kernel, (0, 0), True), node.args[0])


def _recognise_mean(_: GraphModule, node: Node, __: Operations) -> None:
    """A mean over all pixels is an average pooling, reshaped where the pixel is dropped."""
    x, dims = node.args[0], node.args[1]
    if not _is_plain(x, 4) or not isinstance(dims, list) or sorted(d % 4 for d in dims) != [2, 3]:
        return
    value = _val(x)
    if value is None or _argument(node, "dtype") is not None:
        return
    kernel = (value.shape[2], value.shape[3])
    operation = Pooling("average", kernel, kernel, (0, 0), True)
    if _argument(node, "keepdim"):
        _replace(node, pooling, operation, x)
        return
    with node.graph.inserting_after(node):
        pooled = node.graph.call_function(pooling, (x,))
    pooled.meta = {
        "val": node.meta["val"][:, :, None, None],
        "operation": operation,
        "name": node.name,
    }
    with node.graph.inserting_after(pooled):
        flat = node.graph.call_function(aten.flatten.using_ints, (pooled, 1))
    flat.meta = {"val": node.meta["val"]}
    node.replace_all_uses_with(flat)


_RECOGNISED: dict[Any, Callable[[GraphModule, Node, Operations], None]] = {
    aten.conv2d.default: _recognise_convolution,
    aten.conv2d.padding: _recognise_convolution,
    aten.convolution.default: _recognise_convolution,
    aten.linear.default: _recognise_linear,
    aten.batch_norm.default: _recognise_norm,
    aten.max_pool2d.default: _recognise_pooling,
    aten.avg_pool2d.default: _recognise_pooling,
    aten.adaptive_avg_pool2d.default: _recognise_adaptive,
    aten._adaptive_avg_pool2d.default: _recognise_adaptive,
    aten.mean.dim: _recognise_mean,
}
_NORMS = {aten.batch_norm.default}


# What follows a convolution and is done while its result is in registers


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _fuse_epilogue(node: Node) -> None:
    """Take the addition and the activation that follow into the convolution, which moves to where they stood."""
    operation = node.meta["operation"]
    user = _only_user(node)
    if user is not None and user.target is aten.add.Tensor and not operation.linear:
        other = user.args[1] if user.args[0] is node else user.args[0]
        if _is_residual(node, other, user):
            node = _absorb(node, user, operation, other)
            user = _only_user(node)
    if user is not None and (found := _activation(user)) is not None:
        name, slope = found
        operation = _with(operation, name, slope)
        _absorb(node, user, operation, *node.args[1:])


def _is_residual(node: Node, other: Any, addition: Node) -> bool:
    if other is node or not _is_plain(other, 4) or addition.kwargs.get("alpha", 1) != 1:
        return False
    return _val(other).shape == _val(node).shape and _val(addition).shape == _val(node).shape  # type: ignore[union-attr]


def _absorb(node: Node, user: Node, operation: Convolution, *residual: Any) -> Node:
    fused = _replace(user, convolution, operation, node.args[0], *residual)
    fused.meta["name"] = node.meta["name"]
    user.graph.erase_node(user)
    user.graph.erase_node(node)
    return fused


def _with(operation: Convolution, activation: str, slope: float) -> Convolution:
    return Convolution(
        operation.weights,
        operation.stride,
        operation.padding,
        operation.dilation,
        operation.groups,
        activation,
        slope,
        operation.linear,
    )


def _activation(node: Node) -> tuple[str, float] | None:
    """(name, slope) as kernels call it, None where it is no activation that they have."""
    target = node.target
    if target in (aten.relu.default, aten.silu.default, aten.hardswish.default, aten.relu6.default):
        return {"hardswish": "hard_swish"}.get(
            name := target._schema.name.removeprefix("aten::"), name
        ), 0.0
    if target is aten.leaky_relu.default:
        return "leaky_relu", float(_argument(node, "negative_slope"))
    if target in (aten.hardtanh.default, aten.clamp.default):
        low, high = (
            (_argument(node, "min_val"), _argument(node, "max_val"))
            if target is aten.hardtanh.default
            else (_argument(node, "min"), _argument(node, "max"))
        )
        if low == 0 and high == 6:
            return "relu6", 0.0
        if low == 0 and high is None:
            return "relu", 0.0
    return None
