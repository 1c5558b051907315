"""Operators of PyTorch that can write into memory of the plan, and the steps that bring a value into channels last, or
back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from bestof.torch.plan.fusion import convolution, pooling

aten = torch.ops.aten

# Each with its form that writes; all of them treat channels last as well as channels first.
_WRITING: dict[Any, Any] = {
    aten.cat.default: aten.cat.out,
    aten.add.Tensor: aten.add.out,
    aten.sub.Tensor: aten.sub.out,
    aten.mul.Tensor: aten.mul.out,
    aten.div.Tensor: aten.div.out,
    aten.sigmoid.default: aten.sigmoid.out,
    aten.tanh.default: aten.tanh.out,
    aten.silu.default: aten.silu.out,
    aten.gelu.default: aten.gelu.out,
    aten.hardtanh.default: aten.hardtanh.out,
    aten.hardsigmoid.default: aten.hardsigmoid.out,
    aten.hardswish.default: aten.hardswish.out,
    aten.leaky_relu.default: aten.leaky_relu.out,
    aten.elu.default: aten.elu.out,
    aten.upsample_nearest2d.default: aten.upsample_nearest2d.out,
    aten.upsample_bilinear2d.default: aten.upsample_bilinear2d.out,
}


def rows(*_: Any) -> Any:
    """Marks a node that copies a value of PyTorch into channels last; never called."""
    raise AssertionError


def columns(*_: Any) -> Any:
    """Marks a node that copies a channels-last value of the plan into channels first; never called."""
    raise AssertionError


# Views of what is contiguous.
RESHAPING = frozenset({aten.reshape.default, aten.flatten.using_ints})

_TURNING = frozenset({aten.transpose.int, aten.permute.default})


def writing_form(node: Node) -> Any:
    """The operator that writes this node's value, in channels last, into memory that is given; None for the others."""
    return _WRITING.get(node.target) if node.meta.get("rows", False) else None


def _writable(node: Node) -> bool:
    value = node.meta.get("val")
    if (
        node.target not in _WRITING
        or not isinstance(value, Tensor)
        or value.dim() != 4
        or value.numel() == 0
    ):
        return False
    tensors = [value, *(given.meta.get("val") for given in node.all_input_nodes)]
    return all(
        isinstance(one, Tensor) and one.dtype is torch.float32 and one.device.type == "cpu"
        for one in tensors
    )


def bring_into_rows(module: GraphModule) -> None:
    """Put a copy into channels last before the first of our kernels that reads a value which PyTorch computes.

    Marks the values that are channels last: those of our kernels, and what PyTorch's operators write from such.
    """
    graph = module.graph
    for node in list(graph.nodes):
        node.meta["rows"] = _yields_rows(node)
        if node.meta["rows"]:
            continue
        readers = [user for user in node.users if _reads_rows(user)]
        if not readers:
            continue
        last = node
        if node.op == "placeholder":
            last = [one for one in graph.nodes if one.op == "placeholder"][-1]
        with graph.inserting_after(last):
            copy = graph.call_function(rows, (node,))
        copy.meta = {"val": node.meta["val"], "rows": True}
        for reader in readers:
            reader.replace_input_with(node, copy)
    for node in list(graph.nodes):
        if node.meta["rows"] and _has_pixels(node):
            _bring_into_columns(node)


def _has_pixels(node: Node) -> bool:
    """Whether the two layouts differ."""
    _, channels, height, width = node.meta["val"].shape
    return bool(channels > 1 and height * width > 1)


def _bring_into_columns(node: Node) -> None:
    """Put a copy into channels first before the readers that would make one anyway, each by PyTorch."""
    alike = torch.empty(node.meta["val"].shape, device="meta", memory_format=torch.channels_last)
    readers = [user for user in node.users if user.target in RESHAPING and not _stays(alike, user)]
    if not readers:
        return
    with node.graph.inserting_after(node):
        copy = node.graph.call_function(columns, (node,))
    copy.meta = {"val": node.meta["val"].contiguous(), "rows": False}
    for reader in readers:
        reader.replace_input_with(node, copy)


def _stays(alike: Tensor, reader: Node) -> bool:
    """Whether a reader takes a value with the strides of `alike` as it lies, and so do those of what it reshapes.

    `flatten(2)` merges rows and columns in either layout, and the patches of a vision transformer, transposed next, are
    contiguous in channels last. Channels that are shuffled are copied in either layout, and faster from channels first:
    116 us with the copy into it, 244 without, for 8 images of 116 channels @28.
    """
    if reader.target is convolution:
        return alike.is_contiguous()
    if reader.target in _TURNING:
        found: Tensor = reader.target(alike, *reader.args[1:], **reader.kwargs)
    elif reader.target in RESHAPING:
        try:
            found = alike.view(reader.meta["val"].shape)
        except RuntimeError:
            return False
    else:
        return True
    return all(_stays(found, user) for user in reader.users)


def _yields_rows(node: Node) -> bool:
    if node.target in (pooling, rows):
        return True
    if node.target is convolution:
        return not node.meta["operation"].linear
    return _writable(node) and any(given.meta.get("rows", False) for given in node.all_input_nodes)


def _reads_rows(node: Node) -> bool:
    return node.target is pooling or (
        node.target is convolution and not node.meta["operation"].linear
    )
