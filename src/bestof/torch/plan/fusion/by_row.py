"""Let rows of `torch.ops` compute the operators that no operation of the plan takes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.torch.ops import table
from bestof.torch.plan.operations.by_row import (
    ByRow,
    find_operation,
    is_dense_result,
    operation_of_call,
)
from bestof.torch.plan.trace.core_call import by_position, core_call, name_of, recorded
from bestof.torch.plan.trace.graph import RESHAPING, VIEWING
from bestof.torch.plan.trace.skipped_modules import is_of_skipped
from bestof.torch.plan.trace.strides import VIEWS

aten = torch.ops.aten


def choose_rows(graph: Graph, accuracy: Accuracy) -> None:
    """Let rows of the table compute the operators that no other operation of the plan takes.

    These are the calls that the operation would choose for in eager mode, with a contiguous result.
    A product of batches, such as `matmul`, becomes the product of matrices that PyTorch computes
    in its place.
    """
    operators = {name for one in table.OPERATIONS for name in one.operators}
    for node in list(graph.nodes):
        if node.op != "call_function" or "operation" in node.meta or is_of_skipped(node):
            continue
        if node.target in VIEWING or node.target in RESHAPING:
            continue
        if not isinstance(node.meta.get("val"), Tensor):
            continue
        inner = node if core_call(node) is not None else _unfolded(node, operators, accuracy)
        core = None if inner is None else core_call(inner)
        if inner is None or core is None or core.operator not in operators:
            continue
        found = find_operation(core, accuracy) if is_dense_result(inner, core) else None
        if found is not None:
            inner.meta["operation"] = ByRow(found.operation.name, accuracy)
            inner.meta.setdefault("name", inner.name)


# What PyTorch runs around a product of batches. Copies are parts of reshapes.
_COPYING = frozenset({aten.clone.default})
_SHAPING = frozenset({aten.expand.default, aten.permute.default, *VIEWS, *_COPYING})


def _unfolded(node: Node, operators: set[str], accuracy: Accuracy) -> Node | None:
    """Replace a node by an operator of the table and reshapes around it; return the operator's.

    None, and nothing is replaced, if it runs anything else, or if PyTorch answers the operator.
    """
    found = recorded(node)
    if found is None:
        return None
    inner = [call for call in found.calls if call[0] not in _SHAPING]
    if len(inner) != 1 or name_of(inner[0][0]) not in operators:
        return None
    func, args, kwargs, made = inner[0]
    described = pytree.tree_map_only(Tensor, _like, by_position(func, args, kwargs))
    is_last = any(result is found.result for *_, result in found.calls)
    if not is_last or operation_of_call(name_of(func), described, accuracy) is None:
        return None
    nodes, unfolded = dict(found.nodes), None
    for target, given, named, result in found.calls:
        if target in _COPYING or (target is aten.expand.default and result.shape == given[0].shape):
            nodes[id(result)] = nodes[id(given[0])]
            continue
        step, on = (target, (given, named))
        if target in VIEWS:
            step, on = aten.reshape.default, ((given[0], list(result.shape)), {})
        mapped = pytree.tree_map_only(Tensor, lambda one: nodes[id(one)], on)
        with node.graph.inserting_before(node):
            one = node.graph.call_function(step, *mapped)
        value: Tensor = node.meta["val"]
        one.meta = {
            "val": value.new_empty_strided(result.shape, result.stride(), dtype=result.dtype),
            "name": node.meta.get("name", node.name),
        }
        nodes[id(result)] = one
        unfolded = one if result is made else unfolded
    node.replace_all_uses_with(nodes[id(found.result)])
    node.graph.erase_node(node)
    return unfolded


def _like(value: Tensor) -> Tensor:
    """Return a tensor on the CPU that lies in memory as another does, of undefined numbers."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
