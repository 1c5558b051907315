"""Replace operators that change an argument by those that return the result."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from bestof.errors import TorchError
from bestof.torch.plan.graph import fused

_aten = torch.ops.aten


class AliasedMutation(Exception):
    """An argument is changed, and other names of the same memory are read later."""


def remove_mutation(graph: Graph) -> bool:
    """Make every operator pure; return whether the model changed an input.

    `relu_(x)` becomes `relu(x)`, and later readers of x read the result. AliasedMutation if memory
    has several names. TorchError if the model changes a parameter or buffer: a plan keeps no state
    between calls.
    """
    _drop_grad_modes(graph)
    _refuse_changed_attributes(graph)
    changes_inputs = False
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        changed = changed_argument(node)
        if changed is None:
            continue
        root = root_of(changed)
        changes_inputs |= root.op == "placeholder"
        # Values that come from the changed one through this operator will read its result.
        names = [
            other for other in graph.nodes if other is not changed and root_of(other, node) is root
        ]
        if any(order[user] > order[node] for name in names for user in name.users):
            raise AliasedMutation(str(node.target))
        pure = _pure(node.target)
        if pure is None:
            raise AliasedMutation(str(node.target))
        node.target = pure
        for user in list(changed.users):
            if order[user] > order[node]:
                user.replace_input_with(changed, node)
    return changes_inputs


def _refuse_changed_attributes(graph: Graph) -> None:
    for node in graph.nodes:
        changed = changed_argument(node)
        if changed is not None and (root := root_of(changed)).op == "get_attr":
            raise TorchError(
                f"optimize: the model changes a parameter or buffer of shape "
                f"{tuple(root.meta['val'].shape)} while it runs ({node.target}); a plan keeps no "
                "state between calls: call model.eval(), or optimise the parts without state"
            )


def refuse_state(graph: Graph) -> None:
    """Raise TorchError if a norm updates its running statistics, which its schema does not show."""
    for node in graph.nodes:
        if (
            node.target in _NORMS
            and len(node.args) > 5
            and node.args[3] is not None
            and node.args[5]
        ):
            raise TorchError(
                "optimize: a batch norm updates its running statistics; a plan keeps no state "
                "between calls: call model.eval(), or give the norm track_running_stats=False"
            )


_NORMS = {_aten.batch_norm.default, _aten.native_batch_norm.default, _aten.instance_norm.default}


def changed_argument(node: Node) -> Node | None:
    """Return the argument that an operator changes; None for a pure operator."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if (
            argument.alias_info is not None
            and argument.alias_info.is_write
            and isinstance(value, Node)
        ):
            return value
    raise AliasedMutation(str(node.target))  # by a keyword (out=), or several at once


def aliased_argument(node: Node) -> Node | None:
    """Return the argument whose memory an operator's result may share, or None."""
    if node.op != "call_function" or node.target is fused:
        return None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        first = node.args[0] if node.args else None
        return first if isinstance(first, Node) else None  # getitem of a list of views
    shown = [result.alias_info for result in schema.returns if result.alias_info]
    aliased = {name for one in shown for name in one.before_set}
    if any(not one.before_set for one in shown):
        # A list of views, as of `split`. Its schema tells PyTorch's name of the memory, and not us.
        aliased |= {
            name
            for one in schema.arguments
            if one.alias_info is not None
            for name in one.alias_info.before_set
        }
    if not aliased:
        return None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if (
            argument.alias_info is not None
            and aliased & argument.alias_info.before_set
            and isinstance(value, Node)
        ):
            return value
    return None


def root_of(node: Node, barrier: Node | None = None) -> Node:
    """Return the value whose memory a view of views shows; not beyond `barrier`."""
    while node is not barrier and (parent := aliased_argument(node)) is not None:
        node = parent
    return node


def _pure(target: Any) -> Any:
    """Return `add.Tensor` for `add_.Tensor`; None if there is none with the same arguments."""
    packet, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    if target.namespace != "aten" or not packet.endswith("_"):
        return None
    pure = getattr(getattr(_aten, packet[:-1], None), overload, None)
    if (
        pure is None
        or pure._schema.is_mutable
        or len(pure._schema.arguments) != len(target._schema.arguments)
    ):
        return None
    return pure


def _drop_grad_modes(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
