"""Which of PyTorch's core operators a node runs, and on what."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bestof.torch.plan.trace.graph import value_of


class CoreCall(NamedTuple):
    """A call of an operator that eager mode dispatches to a kernel: `_softmax` for `softmax`.

    target: the operator. arguments: all of them by position, with nodes for tensors. results:
    tensors without data; the first is the value of the node.
    """

    target: Any
    arguments: tuple[Any, ...]
    results: tuple[Tensor, ...]

    @property
    def operator(self) -> str:
        """The name of the operator, such as `aten::_softmax`."""
        return name_of(self.target)


def name_of(target: Any) -> str:
    """Return the name of an operator; with that of the overload, such as `aten::add.Tensor`."""
    name: str = target._schema.name
    return name if target._overloadname == "default" else f"{name}.{target._overloadname}"


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Recording(NamedTuple):
    """The core operators that a node runs, on tensors without data.

    calls: (operator, arguments, named ones, result) each. nodes: those of the operands, by `id` of
    the tensors that stood for them. result: what the node returns.
    """

    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]
    nodes: dict[int, Node]
    described: list[Tensor]  # keeps the ids
    result: Any


def recorded(node: Node) -> Recording | None:
    """Return the core operators that a node runs.

    None if the operator changes an argument, or if PyTorch cannot derive its result without data.
    """
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    if target._schema.is_mutable or any(value_of(one) is None for one in node.all_input_nodes):
        return None
    recorder = _Recorder()
    try:
        described = {one: _without_data(one) for one in node.all_input_nodes}
        args, kwargs = pytree.tree_map_only(Node, described.__getitem__, (node.args, node.kwargs))
        with torch.no_grad(), torch.autocast("cpu", enabled=False), recorder:
            result = target(*args, **kwargs)
    except Exception:  # of any kernel, also of operators of others; of layouts without strides
        return None
    nodes = {id(one): node for node, one in described.items()}
    return Recording(recorder.calls, nodes, list(described.values()), result)


def core_call(node: Node) -> CoreCall | None:
    """Return the one operator that a node runs, whose first result is the node's value.

    None if there are several, as of most composite operators, or if it takes lists of tensors.
    """
    found = recorded(node)
    if found is None or len(found.calls) != 1:
        return None
    func, *_, made = found.calls[0]
    results = (made,) if isinstance(made, Tensor) else made
    if not isinstance(results, tuple | list) or not results or results[0] is not found.result:
        return None
    arguments = []
    for one in by_position(*found.calls[0][:3]):
        value = found.nodes.get(id(one)) if isinstance(one, Tensor) else one
        if (value is None) != (one is None) or _holds_tensors(value):
            return None
        arguments.append(value)
    return CoreCall(func, tuple(arguments), tuple(results))


def by_position(func: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments of a call by position, defaults included."""
    return tuple(
        given[place]
        if place < len(given) and not one.kwarg_only
        else named.get(one.name, one.default_value)
        for place, one in enumerate(func._schema.arguments)
    )


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(part, Tensor) for part in pytree.tree_leaves(value))


def planned_strides(node: Node) -> tuple[int, ...]:
    """Return the strides of a value in a plan, as far as known in advance."""
    value, operation = node.meta["val"], node.meta.get("operation")
    if operation is None:
        strides: tuple[int, ...] = value.stride()
        return strides
    layout = torch.channels_last if operation.yields_rows else torch.contiguous_format
    return torch.empty(value.shape, device="meta", memory_format=layout).stride()


def _without_data(node: Node) -> Tensor:
    value: Tensor = node.meta["val"]
    return torch.empty_strided(value.shape, planned_strides(node), dtype=value.dtype, device="meta")
