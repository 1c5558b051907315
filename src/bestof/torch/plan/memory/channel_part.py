"""Values that are written where a concatenation would copy them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Node


class ChannelPart(NamedTuple):
    """The place of a value among the channels of a larger one.

    The concatenation of two branches has the channels of both side by side in each pixel. If only
    the concatenation reads a branch, the last step of the branch can write its results there, and
    nothing is copied. The graph alone decides this: every program of a graph does the same, from a
    trace or from a file. `set_apart` marks the values whose parts would take memory for too long.

    whole: the concatenation. start: the first channel.
    """

    whole: Node
    start: int


def part_of(node: Node) -> ChannelPart | None:
    """Return where a node's result is written as a part; None if it has memory of its own."""
    operation = node.meta.get("operation")
    if operation is None or len(node.users) != 1 or node.meta.get("apart", False):
        return None
    if not operation.writes_part(node):
        return None
    (whole,) = node.users
    joining = whole.meta.get("operation")
    start = None if joining is None else joining.parts(whole).get(node)
    return None if start is None else ChannelPart(whole, start)


def set_apart(nodes: Iterable[Node], apart: bool) -> None:
    """Note whether values have memory of their own, though they could lie in a concatenation."""
    for node in nodes:
        node.meta["apart"] = apart
