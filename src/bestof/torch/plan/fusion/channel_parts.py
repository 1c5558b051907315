"""Let one step gather channels: concatenations, parts and shuffles of values in channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from bestof.torch.plan.operations.checks import is_rows, operation_of, val
from bestof.torch.plan.operations.joined_channels import JoinedChannels
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    fused,
    is_plain,
    only_user,
    shape_of,
)
from bestof.torch.plan.trace.skipped_modules import is_of_skipped

aten = torch.ops.aten


def gather_channels(node: Node) -> bool:
    """Replace a concatenation, a channel shuffle, or a part that a layer reads, in place.

    PyTorch copies a shuffled concatenation of ShuffleNetV2 twice, and once more the half that the
    next unit computes with: 38 % of the time of a call. A part of a shuffle, and a shuffle of a
    concatenation, become one step, which reads what was joined. Return whether the node was
    replaced. It stays in the graph, unread.
    """
    found = _concatenation(node) or _shuffle(node) or _part(node)
    if found is None or is_of_skipped(node):
        return False
    operation, args = found
    with node.graph.inserting_before(node):
        made = node.graph.call_function(fused, tuple(args), name=operation.name)
    name = node.meta.get("name", node.name)
    made.meta = {"val": node.meta["val"], "operation": operation, "name": name}
    node.replace_all_uses_with(made)
    return True


def take_pieces(graph: Graph) -> None:
    """Let norms and concatenations read the pieces of concatenations that nothing else reads.

    A layer of a dense block reads what all layers before it have made, by a norm. The pieces stay
    where they lie, and no concatenation of the block is written.
    """
    for node in list(graph.nodes):
        if _is_whole(node) and all(_joins(user, node) for user in node.users):
            for user in list(node.users):
                given = (node.args if one is node else (one,) for one in user.args)
                user.args = tuple(piece for pieces in given for piece in pieces)
            graph.erase_node(node)


_Found = tuple[JoinedChannels, Sequence[Node]]


def _concatenation(node: Node) -> _Found | None:
    if node.target is not aten.cat.default or not is_plain(node, 4, MULTIPLIED):
        return None
    parts: Any = node.args[0]
    if argument(node, "dim") not in (1, -3) or not all(map(_is_image, parts)):
        return None
    alike = all(val(one).dtype is val(node).dtype for one in parts)
    return (JoinedChannels(), parts) if alike else None


def _shuffle(node: Node) -> _Found | None:
    if not is_plain(node, 4, MULTIPLIED):
        return None
    first, groups = _shuffled_by_views(node) or (node, _groups(node))
    x: Any = first.args[0] if groups else None
    if not _is_image(x) or shape_of(x) != shape_of(node):
        return None
    if _is_whole(x) and only_user(x) is first:
        return JoinedChannels(groups), x.args
    return JoinedChannels(groups), [x]


def _shuffled_by_views(node: Node) -> tuple[Node, int] | None:
    """Recognise x.view(n, groups, c / groups, h, w).transpose(1, 2).reshape(n, c, h, w).

    Return the first view, and the groups.
    """
    if node.target is not aten.reshape.default:
        return None
    turned: Any = node.args[0]
    if _is(turned, aten.contiguous.default, aten.clone.default):
        turned = turned.args[0]
    if not _is(turned, aten.transpose.int) or sorted(turned.args[1:]) != [1, 2]:
        return None
    split: Any = turned.args[0]
    if not _is(split, aten.reshape.default) or not is_plain(split, 5, MULTIPLIED):
        return None
    n, groups, each, *pixels = shape_of(split)
    return (split, groups) if (n, groups * each, *pixels) == shape_of(node) else None


def _groups(node: Node) -> int:
    """Return the groups of PyTorch's own shuffle; 0 for other nodes."""
    return int(argument(node, "groups")) if node.target is aten.channel_shuffle.default else 0


def _part(node: Node) -> _Found | None:
    if node.target is not aten.slice.Tensor or not is_plain(node, 4, MULTIPLIED):
        return None
    x: Any = node.args[0]
    if argument(node, "dim") not in (1, -3) or argument(node, "step") != 1 or not _is_image(x):
        return None
    # Other readers take a view.
    if not any(_reads_rows(user) for user in node.users):
        return None
    start = argument(node, "start") or 0
    start = max(0, start + shape_of(x)[1] if start < 0 else start)
    joined = operation_of(x)
    is_taken = all(_is(one, aten.slice.Tensor) for one in x.users)
    if isinstance(joined, JoinedChannels) and joined.weights is None and is_taken:
        return JoinedChannels(joined.groups, joined.start + start), x.args
    return JoinedChannels(1, start), [x]


def _is_whole(node: Node) -> bool:
    """Return whether a node is a concatenation: all channels of its arguments, in order."""
    if operation_of(node) != JoinedChannels():
        return False
    return sum(shape_of(one)[1] for one in node.args) == shape_of(node)[1]


def _joins(node: Node, piece: Node) -> bool:
    """Return whether a node concatenates a piece with others, and does not add it."""
    operation = operation_of(node)
    if not isinstance(operation, JoinedChannels):
        return False
    return not (operation.added and node.args[-1] is piece)


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.target in targets


def _is_image(node: Any) -> bool:
    return is_rows(node) and is_plain(node, 4, MULTIPLIED)


def _reads_rows(node: Node) -> bool:
    operation = operation_of(node)
    if operation is None:
        return node.target in (aten.cat.default, aten.channel_shuffle.default)
    return operation.reads_rows
