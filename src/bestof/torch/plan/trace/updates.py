"""Changes of inputs: written in place where nothing reads the old value later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bestof.torch.plan.trace.mutation import SCATTERING, aliased_argument

_aten = torch.ops.aten

# Operators that return their first argument with some elements replaced.
_UPDATING: dict[Any, Any] = {
    _aten.index_copy.default: _aten.index_copy_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.copy.default: _aten.copy_.default,
}
_PARTS = {
    scatter: (part, copying)
    for (part, scatter), copying in zip(
        SCATTERING.items(), (_aten.slice_copy.Tensor, _aten.select_copy.int), strict=True
    )
}
WRITING = frozenset(_UPDATING.values())


def update_in_place(graph: Graph) -> None:
    """Write only the changed elements of inputs, where that gives the same results.

    `mutation.py` leaves a pure graph, and one `copy_(input, last value)` for each changed input.
    If the last value comes from the input by operators that replace some elements, these operators
    become operators that write to the input. If a later step reads the old value, the copy of the
    whole value stays, behind all steps.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not _aten.copy_.default:
            continue
        given, value = node.args[:2]
        assert isinstance(given, Node)
        assert isinstance(value, Node)
        updates = _updates(given, value)
        if updates is not None and _are_in_order(given, updates, node, order):
            graph.erase_node(node)
            for update in updates:
                order |= dict.fromkeys(_write(update, given), order[update])
        else:
            order |= dict.fromkeys(_keep_outputs(node, given, value), order[node])
    graph.eliminate_dead_code()


def _updates(given: Node, value: Node) -> list[Node] | None:
    """Return the operators that lead from an input to its last value; None if others do."""
    found: list[Node] = []
    while value is not given:
        base = _base(value)
        if base is None:
            return None
        found.append(value)
        value = base
    return found[::-1]


def _base(update: Any) -> Node | None:
    """Return the value of which an operator replaces some elements; None for other operators."""
    if not isinstance(update, Node) or update.target not in {*_UPDATING, *_PARTS}:
        return None
    base = update.args[0]
    return base if isinstance(base, Node) else None


def _inner(update: Node) -> Node | None:
    """Return the operator that updates the part of a value that `update` puts back, if any."""
    if update.target not in _PARTS:
        return None
    part = update.args[1]
    base = _base(part)
    if not isinstance(part, Node) or base is None or base.target not in _PARTS[update.target]:
        return None
    same = base.args[0] is update.args[0] and _options(base, 1) == _options(update, 2)
    return part if same else None


def _options(node: Node, first: int) -> dict[str, Any]:
    """Return the arguments of an operator from the given place, by name, defaults included."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    return {
        one.name: node.args[place]
        if place < len(node.args)
        else node.kwargs.get(one.name, one.default_value)
        for place, one in enumerate(arguments)
        if place >= first
    }


def _sources(update: Node) -> list[Node]:
    """Return the values that an update reads, besides those that it changes."""
    inner = _inner(update)
    if inner is not None:
        return _sources(inner)
    if update.target is _aten.copy.default:
        return [one for one in update.args[1:] if isinstance(one, Node)]
    rest = pytree.tree_leaves((update.args[1:], update.kwargs))
    return [one for one in rest if isinstance(one, Node)]


def _own(update: Node) -> set[Node]:
    """Return the nodes that become one write: they read the old value where it is changed."""
    values = _values(update)
    bases = (base for one in values[1:] if (base := _base(one)) is not None)
    return {*values, *bases}


def _values(value: Node) -> list[Node]:
    """Return an updated value, and the values of its updated parts."""
    found = [value]
    while (inner := _inner(found[-1])) is not None:
        found.append(inner)
    return found


def _are_in_order(given: Node, updates: list[Node], end: Node, order: dict[Node, int]) -> bool:
    """Return whether each value is read only before the next update, and not by that itself."""
    for old, update in zip([given, *updates], updates, strict=False):
        names, here = _names(_values(old)), order[update]
        if any(one in names for one in _sources(update)):
            return False
        own = _own(update)
        early = {user for name in names for user in name.users} - own - {end}
        if any(order[reader] > here for reader in early):
            return False
        late = {user for part in _values(update)[1:] for user in part.users} - own
        if any(order[reader] < here for reader in late):
            return False
    return True


def _names(values: list[Node]) -> set[Node]:
    """Return all values that may share the memory of some."""
    names, open_ = set(values), list(values)
    while open_:
        for user in open_.pop().users:
            if user not in names and _may_share(user):
                names.add(user)
                open_.append(user)
    return names


def _may_share(node: Node) -> bool:
    """Return whether a result may lie in the memory of an argument.

    Operators that PyTorch composes of others may return an argument without saying so: dropout in
    evaluation mode does.
    """
    if "operation" in node.meta or node.op == "output":
        return False
    if aliased_argument(node) is not None:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        return True
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _write(update: Node, given: Node) -> list[Node]:
    """Let an update write to an input, and its readers read that; return the new nodes."""
    values = _values(update)
    made = [given]
    with update.graph.inserting_before(update):
        for scatter in values:
            if scatter.target in _PARTS:
                made.append(_part(scatter, made[-1]))
        last = values[-1]
        if last.target in _PARTS:
            node = update.graph.call_function(_aten.copy_.default, (made[-1], last.args[1]))
        else:
            args = made[-1], *last.args[1:]
            node = update.graph.call_function(_UPDATING[last.target], args, dict(last.kwargs))
    node.meta = {"val": made[-1].meta["val"]}
    for value, into in zip(values, made, strict=False):  # `made` may have one part more
        value.replace_all_uses_with(into)
        update.graph.erase_node(value)
    return [*made[1:], node]


def _part(scatter: Node, whole: Node) -> Node:
    part, _ = _PARTS[scatter.target]
    node = scatter.graph.call_function(part, (whole, *scatter.args[2:]), dict(scatter.kwargs))
    value: Tensor = whole.meta["val"]
    node.meta = {"val": part(value, *scatter.args[2:], **scatter.kwargs)}
    return node


def _keep_outputs(node: Node, given: Node, value: Node) -> list[Node]:
    """Let the outputs show the right values, behind a copy of the whole value to an input.

    The last value is the input itself. Outputs that show the old value become copies, which are
    returned.
    """
    copies = []
    *_, output = node.graph.nodes
    assert output.op == "output"
    for one in _names([given]):
        if output in one.users:
            with node.graph.inserting_before(node):
                copy = node.graph.call_function(_aten.clone.default, (one,))
            copy.meta = dict(one.meta)
            output.replace_input_with(one, copy)
            copies.append(copy)
    if value is not given:
        output.replace_input_with(value, given)
    return copies
