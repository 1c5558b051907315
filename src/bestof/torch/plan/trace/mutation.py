"""Replace operators that change an argument by those that return the result."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bestof.errors import TorchError
from bestof.torch.plan.trace.graph import fused

_aten = torch.ops.aten

# Operators that take a part of a value, each with the operator that puts another value there.
SCATTERING: dict[Any, Any] = {
    _aten.slice.Tensor: _aten.slice_scatter.default,
    _aten.select.int: _aten.select_scatter.default,
}

_DROPOUTS = {
    *(_aten.dropout.default, _aten.feature_dropout.default),
    *(_aten.alpha_dropout.default, _aten.feature_alpha_dropout.default),
}

# The gates of an LSTM. Who calls these promises that the whole is not read after a part is changed.
# Each with the operator whose schema says that the parts are views.
UNSAFE: dict[Any, Any] = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
    _aten.unsafe_chunk.default: _aten.chunk.default,
}

# Pure operators whose overload has another name.
_PURE = {_aten.transpose_.default: _aten.transpose.int}


class AliasedMutation(Exception):
    """An argument is changed, and other names of the same memory are read later."""


def remove_mutation(graph: Graph, keeps_strides: bool = False) -> bool:
    """Make every operator pure, and return whether the model changes an input.

    keeps_strides: a new value gets the strides of the changed one. Kernels of PyTorch have other
    bits for a row with a gap behind it than for rows in one piece.

    `relu_(x)` becomes `relu(x)`, and later readers of x read the result. A write to a part of x
    becomes a new x. If x is an input, `copy_(x, its last value)` stands before the output: such
    operators are the only ones left that change an argument. AliasedMutation if the memory has
    other names that are read later. TorchError if the model changes a parameter or buffer, or the
    shape of an input.
    """
    _drop_grad_modes(graph)
    _refuse_changed_attributes(graph)
    refuse_reshaped_inputs(graph)
    _resolve_hidden_names(graph)
    inputs = {node: node for node in graph.nodes if node.op == "placeholder"}  # by their last value
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        changed = changed_argument(node)
        if changed is None:
            continue
        reshapes = _reshapes(node)
        names = [changed] if reshapes else _parts(changed)
        _refuse_other_names(graph, node, names, order)
        whole = names[-1]
        if root_of(whole) is not whole and root_of(whole) in inputs and not reshapes:
            raise AliasedMutation(str(node.target))
        pure = _pure(node.target)
        if pure is None or _is_cast(node, changed):
            raise AliasedMutation(str(node.target))
        node.target = pure
        value = _renamed(node, names, order)
        if keeps_strides and value is node and not reshapes:
            value = _with_strides_of(changed, node, order)
        if whole in inputs and not reshapes:
            inputs[value] = inputs.pop(whole)
    changed_inputs = {given: value for value, given in inputs.items() if given is not value}
    for given, value in changed_inputs.items():
        _write_back(graph, given, value)
    return bool(changed_inputs)


def _resolve_hidden_names(graph: Graph) -> None:
    """Drop dropout in evaluation mode, which returns its argument, though no schema says so.

    Other operators that PyTorch composes may return a view, as einsum of one operand does. Raise
    TorchError if such memory is changed afterwards.
    """
    changed: set[int] = set()
    for node in reversed(graph.nodes):
        written = changed_argument(node)
        if written is not None:
            changed |= _memory(written)
        elif node.target in _DROPOUTS and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif (
            node.op == "call_function"
            and node.target not in UNSAFE
            and aliased_argument(node) is None
        ):
            given = set().union(*map(_memory, node.all_input_nodes))
            if _memory(node) & given & changed:
                raise TorchError(
                    f"optimize: {node.target} returns a view of a value that the model changes "
                    "afterwards; a plan cannot follow that: let the model clone the value first"
                )


def _memory(node: Node) -> set[int]:
    """Return what identifies the memory of a node's tensors: their descriptions share it, too."""
    return {
        one.untyped_storage()._cdata
        for one in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(one, torch.Tensor) and one.layout is torch.strided
    }


def _parts(changed: Node) -> list[Node]:
    """Return a value, then the larger ones that it is a part of."""
    names = [changed]
    while names[-1].target in SCATTERING:
        names.append(names[-1].args[0])  # type: ignore[arg-type]  # the schema says that it is one
    return names


def _refuse_other_names(
    graph: Graph, node: Node, names: list[Node], order: dict[Node, int]
) -> None:
    """Raise AliasedMutation if other names of memory that an operator changes are read later.

    Values that come from the changed one through this operator will read its result.
    """
    root, part = root_of(names[0]), _unsafe_part(names[0])
    others = [
        one
        for one in graph.nodes
        if one not in names
        and root_of(one, barrier=node) is root
        and (part is None or _unsafe_part(one) in (None, part))
    ]
    if any(order[user] > order[node] for one in others for user in one.users):
        raise AliasedMutation(str(node.target))


def _unsafe_part(node: Node) -> int | None:
    """Return which part of an unsafe split a value lies in; None for other values.

    The parts share no memory.
    """
    while (parent := aliased_argument(node)) is not None:
        if parent.target in UNSAFE:
            return int(node.args[1])  # type: ignore[arg-type]  # `getitem` of the list
        node = parent
    return None


def _renamed(node: Node, names: list[Node], order: dict[Node, int]) -> Node:
    """Let later readers of each name read its new value; return that of the last name."""
    readers = {one: [user for user in one.users if order[user] > order[node]] for one in names}
    results = list(node.users)
    value = made = node
    for part, whole in pairwise(names):
        args = whole, value, *part.args[1:]
        value = made = _insert(made, SCATTERING[part.target], args, part, whole)
        order[made] = order[node]
    last = value
    # Each part is taken anew from what it is a part of: a later change of it changes that.
    for name in reversed(names):
        if name is not names[-1]:
            value = made = _insert(made, name.target, (value, *name.args[1:]), name, name)
            order[made] = order[node]
        for user in readers[name]:
            user.replace_input_with(name, value)
    for user in results if value is not node else []:
        user.replace_input_with(node, value)
    return last


def _with_strides_of(changed: Node, node: Node, order: dict[Node, int]) -> Node:
    """Return a value with the strides of the one that it replaces: a copy, if a node has others.

    The readers of the node read the copy.
    """
    made = _strides_of(node)
    if made == changed.meta["val"].stride():
        return node
    with node.graph.inserting_after(node):
        copy = node.graph.call_function(_aten.copy.default, (changed, node))
    copy.meta = {"val": changed.meta["val"]}
    if made is not None:
        node.meta = {**node.meta, "val": _laid_out(node, made)}
    order[copy] = order[node]
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    return copy


def _strides_of(node: Node) -> tuple[int, ...] | None:
    """Return the strides of an operator's result; None if PyTorch derives none without data."""
    target: Any = node.target
    try:
        described = {one: _laid_out(one, one.meta["val"].stride()) for one in node.all_input_nodes}
        args, kwargs = pytree.tree_map_only(Node, described.__getitem__, (node.args, node.kwargs))
        with torch.no_grad():
            strides: tuple[int, ...] = target(*args, **kwargs).stride()
    except Exception:  # of any kernel
        return None
    return strides


def _laid_out(node: Node, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor without data of a node's shape and type."""
    value = node.meta["val"]
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")


def _insert(after: Node, target: Any, args: tuple[Any, ...], like: Node, shaped: Node) -> Node:
    with after.graph.inserting_after(after):
        node = after.graph.call_function(target, args, dict(like.kwargs))
    node.meta = {"val": shaped.meta["val"]}
    return node


def _is_cast(node: Node, changed: Node) -> bool:
    """Return whether the pure operator could yield another dtype than the changed value has."""
    if node.target is _aten.copy_.default:
        return False
    dtype = changed.meta["val"].dtype
    given = [one.meta.get("val") for one in node.all_input_nodes]
    return any(
        isinstance(one, torch.Tensor) and torch.promote_types(dtype, one.dtype) is not dtype
        for one in given
    )


def _write_back(graph: Graph, given: Node, value: Node) -> None:
    """Write a value to an input before the output."""
    *_, output = graph.nodes
    with graph.inserting_before(output):
        node = graph.call_function(_aten.copy_.default, (given, value))
    node.meta = {"val": given.meta["val"]}


def _reshapes(node: Node) -> bool:
    """Return whether an operator changes the shape or strides of its argument, and no element."""
    return torch.Tag.inplace_view in getattr(node.target, "tags", ())


def refuse_reshaped_inputs(graph: Graph) -> None:
    """Raise TorchError if the model changes the shape or strides of an input."""
    for node in graph.nodes:
        changed = changed_argument(node) if _reshapes(node) else None
        if changed is not None and changed.op == "placeholder":
            raise TorchError(
                f"optimize: the model changes the shape or strides of an input of shape "
                f"{tuple(changed.meta['val'].shape)} ({node.target}); a plan changes only the "
                "elements of its inputs: use the operator without the trailing underscore"
            )


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
    if target in _PURE:
        return _PURE[target]
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
