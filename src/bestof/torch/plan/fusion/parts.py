"""Replace operators that return a list of parts by operators that return one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Graph, Node

from bestof.torch.plan.trace.graph import argument

aten = torch.ops.aten

_SPLITTING = frozenset(
    {
        aten.split.Tensor,
        aten.split.sizes,
        aten.split_with_sizes.default,
        aten.chunk.default,
        aten.tensor_split.sections,
    }
)


def take_parts(graph: Graph) -> None:
    """Replace `split` and `chunk` by slices, and `unbind` by selections, in place.

    Such a part of a value in the arena is bound once. A list of views is PyTorch's: for 24 layers
    of GPT-2, lists and what was reshaped behind them took 3 of 60 ms a token. Unread nodes stay;
    the caller eliminates them.
    """
    for node in list(graph.nodes):
        if node.target in _SPLITTING:
            dim = argument(node, "dim")
            sizes = [part.shape[dim] for part in node.meta["val"]]
            starts = accumulate(sizes, initial=0)
            taken = [(dim, start, start + size) for start, size in zip(starts, sizes, strict=False)]
            _take(graph, node, aten.slice.Tensor, taken)
        elif node.target is aten.unbind.int:
            places = range(len(node.meta["val"]))
            _take(graph, node, aten.select.int, [(argument(node, "dim"), one) for one in places])


def _take(graph: Graph, node: Node, target: Any, taken: Sequence[tuple[int, ...]]) -> None:
    """Put an operator with its part's arguments in the place of each part that is read."""
    for part in list(node.users):
        if part.target is not operator.getitem:
            continue
        with graph.inserting_before(part):
            made = graph.call_function(target, (node.args[0], *taken[part.args[1]]))  # type: ignore[index]
        made.meta = {"val": part.meta["val"]}
        part.replace_all_uses_with(made)
        graph.erase_node(part)
