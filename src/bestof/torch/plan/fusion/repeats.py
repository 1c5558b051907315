"""Compute once what a graph computes several times."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bestof.torch.plan.trace.mutation import aliased_argument


def merge_repeats(graph: Graph) -> None:
    """Let all readers of equal operators of equal arguments read the first, in a pure graph.

    Models of transformers reshape tables and count places anew in each layer: 24 layers of a Llama
    took 71 such operators a token. Random operators stay, and those outside of PyTorch, which may
    keep state. So do values that an output shows: each output has memory of its own.
    """
    shown, first = _shown(graph), dict[Any, Node]()
    for node in list(graph.nodes):
        if node in shown or not _is_repeatable(node):
            continue
        same = first.setdefault(_key(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _shown(graph: Graph) -> set[Node]:
    """Return the outputs, and the values whose views are outputs."""
    *_, output = graph.nodes
    found: set[Node] = set()
    for one in output.all_input_nodes:
        node: Node | None = one
        while node is not None:
            found.add(node)
            node = aliased_argument(node)
    return found


def _is_repeatable(node: Node) -> bool:
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace == "aten"
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def _key(node: Node) -> tuple[Any, ...]:
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    # 1, 1.0 and True are equal; 0.0 and -0.0 are, too.
    said = (one if isinstance(one, Node) else (type(one), repr(one)) for one in leaves)
    return (node.target, repr(spec), *said)
