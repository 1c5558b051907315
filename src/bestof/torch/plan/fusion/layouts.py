"""Decide which values of a graph lie in channels last, and where values are copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from bestof.torch.plan.fusion.channel_parts import gather_channels, take_pieces
from bestof.torch.plan.operations.channels import ToChannelsFirst, ToChannelsLast
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.written import Written, may_be_written
from bestof.torch.plan.trace.graph import RESHAPING, behind, fused

_TURNING = frozenset({torch.ops.aten.transpose.int, torch.ops.aten.permute.default})


def bring_into_rows(module: GraphModule) -> None:
    """Keep the values of operations in channels last, with as few copies as possible.

    PyTorch's operators that read values in channels last write results alike if they can. A copy
    into channels last stands before the first operation that reads another value. A copy into
    channels first stands before the readers that would make one anyway, each by PyTorch.
    """
    graph = module.graph
    for node in list(graph.nodes):
        if operation_of(node) is None and not gather_channels(node) and may_be_written(node):
            node.meta["operation"] = Written()
    graph.eliminate_dead_code()
    take_pieces(graph)
    for node in list(graph.nodes):
        if _yields_rows(node):
            continue
        readers = [
            user
            for user in node.users
            if _reads_rows(user)
            and not (node.op == "get_attr" and user.meta["operation"].reads_parameters)
        ]
        if not readers or _all_read_planes(node, readers):
            continue
        _copy(node, behind(node), ToChannelsLast(), node.meta["val"], readers)
    for node in list(graph.nodes):
        if _yields_rows(node) and _has_pixels(node):
            _bring_into_columns(node)


def _copy(node: Node, after: Node, operation: Operation, val: Any, readers: list[Node]) -> None:
    with node.graph.inserting_after(after):
        copy = node.graph.call_function(fused, (node,), name=operation.name)
    copy.meta = {"val": val, "operation": operation}
    for reader in readers:
        reader.replace_input_with(node, copy)


def _all_read_planes(node: Node, readers: list[Node]) -> bool:
    """Return whether the operations that read a value take it in channels first.

    Several would each copy it, if others are faster.
    """
    if len(readers) > 1:
        return False
    reader = readers[0]
    alone = [one for one in reader.args if one is node] == [reader.args[0]]
    return alone and reader.meta["operation"].reads_planes(reader)


def _has_pixels(node: Node) -> bool:
    """Return whether the two layouts differ."""
    _, channels, height, width = node.meta["val"].shape
    return bool(channels > 1 and height * width > 1)


def _bring_into_columns(node: Node) -> None:
    alike = torch.empty(node.meta["val"].shape, device="meta", memory_format=torch.channels_last)
    readers = [user for user in node.users if user.target in RESHAPING and not _stays(alike, user)]
    if readers:
        _copy(node, node, ToChannelsFirst(), node.meta["val"].contiguous(), readers)


def _stays(alike: Tensor, reader: Node) -> bool:
    """Return whether a reader takes a value with the strides of `alike` without a copy.

    The same must hold for the readers of a reshaped value. `flatten(2)` merges rows and columns in
    either layout, and the patches of a vision transformer, transposed next, are contiguous in
    channels last.
    """
    if operation_of(reader) is not None and not _reads_rows(reader):
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
    operation = operation_of(node)
    return operation is not None and operation.yields_rows


def _reads_rows(node: Node) -> bool:
    operation = operation_of(node)
    return operation is not None and operation.reads_rows
