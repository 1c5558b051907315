"""Compute linear layers that read the same value as one product, whose parts are views."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.trace.graph import RESHAPING, VIEWING, constant, shape_of
from bestof.torch.plan.trace.strides import reads_strides

aten = torch.ops.aten

# Four layers of attention by float32 products, one thread of a loaded AVX-512 machine, two runs;
# the time of separate products over that of joined ones, with quartiles:
#
# | inputs | q, k and v | rows | separate / joined |
# |---|---|---|---|
# | 768 | 768, 768, 768 | 1 | 1.15 [1.09 1.23] |
# | 768 | 768, 768, 768 | 8 | 1.09 [1.08 1.11] |
# | 768 | 768, 768, 768 | 64 | 1.11 [0.96 1.67] |
# | 768 | 768, 768, 768 | 128 | 0.98 [0.90 1.02], 1.03 [0.93 1.09] |
# | 768 | 768, 768, 768 | 197 | 1.00 [0.95 1.04], 0.94 [0.91 1.03] |
_MOST_ROWS = 64


def join_products(rewriter: Rewriter) -> None:
    """Replace linear layers that read the same value by one layer with the weights of all.

    The query, the key and the value of attention are such layers. The input is then packed once,
    and the threads meet once. Layers are joined if they have the same activation and no residual,
    if every reader takes a part of the result where it lies, and if nothing else reads the weights,
    which would need a second copy of the weights. For the same reason the first shape of a plan
    decides for all shapes: it joins layers of few rows.
    """
    module = rewriter.module
    groups = [group for group in _groups(module) if all(map(_is_read_in_place, group))]
    together = {node: group for group in groups for node in group}
    for group in groups:
        joins = rewriter.was_joined(_weights(group))
        if joins is None:
            joins = prod(shape_of(group[0])[:-1]) <= _MOST_ROWS
        if joins and _are_read_only_together(module, group, together):
            _join(rewriter, group)
    module.graph.eliminate_dead_code()


def _linear(node: Node) -> Linear | None:
    operation = operation_of(node)
    return operation if isinstance(operation, Linear) else None


def _groups(module: GraphModule) -> list[list[Node]]:
    """Return the layers that one product can compute, in the order of the graph."""
    found: dict[tuple[Any, ...], list[Node]] = {}
    for node in module.graph.nodes:
        operation = _linear(node)
        if operation is not None and len(node.args) == 1:
            layer = operation.layer
            found.setdefault((node.args[0], layer.activation, layer.slope), []).append(node)
    return [group for group in found.values() if len(group) > 1]


def _is_read_in_place(node: Node) -> bool:
    """Return whether all readers take the value as a part of wider rows, without a copy."""
    *rows, outer = shape_of(node)
    wider = torch.empty(*rows, 2 * outer, device="meta")[..., :outer]
    return all(_takes(wider, user) for user in node.users)


def _takes(value: Tensor, reader: Node) -> bool:
    """Return whether a reader takes a value with these strides, and so do the readers of a view."""
    operation = operation_of(reader)
    if operation is not None:
        return operation.reads_parts and value.stride(-1) == 1
    if reader.op == "output":
        return True
    if reads_strides(reader):
        return False
    if reader.target in RESHAPING:
        try:
            value = value.view(shape_of(reader))
        except RuntimeError:
            return False
    elif reader.target in VIEWING:
        target: Any = reader.target
        value = target(value, *reader.args[1:], **reader.kwargs)
    else:
        return True
    return all(_takes(value, user) for user in reader.users)


def _are_read_only_together(
    module: GraphModule, group: list[Node], together: dict[Node, list[Node]]
) -> bool:
    """Return whether nothing reads the weights of a group but groups of the same weights."""
    weights = _weights(group)
    storages = {one.weight.untyped_storage().data_ptr() for one in weights}
    if len(storages) < len(group):
        return False
    for node in module.graph.nodes:
        value = constant(module, node)
        if value is not None and value.untyped_storage().data_ptr() in storages:
            return False
        found = _weights([node])
        if found and found[0].weight.untyped_storage().data_ptr() in storages:
            others = _weights(together.get(node, []))
            if [*map(id, others)] != [*map(id, weights)]:
                return False
    return True


def _weights(nodes: list[Node]) -> list[FrozenWeights]:
    return [one.layer.weights for node in nodes if (one := _linear(node)) is not None]


def _join(rewriter: Rewriter, group: list[Node]) -> None:
    """Put one product behind the first layer of a group, and a part of it for each layer."""
    first, operation = group[0], _linear(group[0])
    assert operation is not None
    joined = Linear(replace(operation.layer, weights=rewriter.joined(_weights(group))))
    rows = shape_of(first)[:-1]
    outer = sum(shape_of(node)[-1] for node in group)
    value: Tensor = first.meta["val"]
    product = rewriter.insert(first, joined, first.args[0], val=value.new_empty((*rows, outer)))
    product.meta["name"] = " + ".join(str(node.meta["name"]) for node in group)
    after, start = product, 0
    for node in group:
        end = start + shape_of(node)[-1]
        with after.graph.inserting_after(after):
            part = after.graph.call_function(aten.slice.Tensor, (product, -1, start, end))
        part.meta = {"val": node.meta["val"]}  # an output has the strides of the model's
        node.replace_all_uses_with(part)
        after, start = part, end
