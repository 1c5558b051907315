"""The graphs of plans as JSON. Names in a file are looked up, and nothing is compiled from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.file.container import Tensors
from bestof.torch.plan.file.operators import name_of, target_of
from bestof.torch.plan.file.recomputed import Recomputed
from bestof.torch.plan.file.values import decoded, encoded, label_in, name_in
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.operations.by_row import ByRow
from bestof.torch.plan.operations.checks import expect, operation_of, val
from bestof.torch.plan.operations.table import decode_operation
from bestof.torch.plan.operations.written import Written
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.trace.graph import PlainGraph, fused

_KINDS = ("placeholder", "get_attr", "call_function", "output")


def encoded_graph(
    program: Program, tensors: Tensors, number: Callable[[FrozenWeights], int]
) -> list[dict[str, Any]]:
    """Return the nodes of a program; `number` gives each weight its number in the file."""
    nodes = []
    for node in [*program.nodes, program.output]:
        one: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.op == "get_attr":
            one["tensor"] = tensors.number(program.attribute(node))
        else:
            if node.op == "call_function":
                one["target"] = name_of(node.target)
            one["args"], one["kwargs"] = encoded(node.args), encoded(node.kwargs)
        one["val"] = encoded(node.meta.get("val"))
        operation = operation_of(node)
        if operation is not None:
            one["operation"] = operation.encode(number)
            one["label"] = node.meta.get("name", node.name)
        nodes.append(one)
    return nodes


def decoded_graph(
    nodes: list[dict[str, Any]], tensors: list[Tensor], weights: list[FrozenWeights], most: int
) -> PlainGraph:
    """Return the graph of a JSON value. Each node is checked before the next is read.

    most: the bytes that a value may take. An error of any kind if a node does not fit the nodes
    before it, if no plan has its operator, or if its result is not what the file says.
    """
    reader = _Reader(tensors, weights, most)
    for one in nodes:
        reader.read(one)
    expect(bool(nodes) and nodes[-1]["op"] == "output", "the end of the graph")
    return reader.graph


class _Reader:
    """Builds a graph node by node."""

    def __init__(self, tensors: list[Tensor], weights: list[FrozenWeights], most: int) -> None:
        self.graph = PlainGraph()
        self._tensors, self._weights, self._most = tensors, weights, most
        self._known: dict[str, Node] = {}
        self._recomputed = Recomputed()
        self._ended = False

    def read(self, one: dict[str, Any]) -> None:
        """Add a node and check it."""
        op, name = one["op"], name_in(one["name"])
        expect(op in _KINDS and name not in self._known and not self._ended, f"node {name}")
        self._ended = op == "output"
        target: Any = name
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if op == "get_attr":
            target = self._attribute(one["tensor"])
        else:
            args, kwargs = self._decoded(one["args"]), self._decoded(one["kwargs"])
        if op == "call_function":
            target = target_of(one["target"])
        node = self.graph.graph.create_node(op, target, tuple(args), kwargs, name=name)
        node.meta = {"val": self._decoded(one["val"])}
        self._known[name] = node
        if op == "call_function":
            self._check_computed(node, one)
        elif op == "output":
            _check_output(node)
        else:
            expect(not node.args and not node.kwargs and isinstance(val(node), Tensor), name)
        if op == "get_attr":
            expect(_is_described(self._tensors[one["tensor"]], val(node)), name)

    def _check_computed(self, node: Node, one: dict[str, Any]) -> None:
        operation = None
        if "operation" in one:
            operation = decode_operation(one["operation"], self._weights)
            node.meta |= {"operation": operation, "name": label_in(one["label"])}
        by_kernel = operation is not None and not isinstance(operation, ByRow | Written)
        expect((node.target is fused) == by_kernel, node.name)
        if by_kernel:
            expect(not node.kwargs, node.name)
        else:
            self._recomputed.check(node)
        if operation is not None:
            operation.check(node)

    def _attribute(self, number: Any) -> str:
        """Add a tensor of the file; return its name in the graph."""
        expect(type(number) is int and number >= 0, "the number of a tensor")
        name = f"tensor_{len(self._known)}"
        self.graph.register_buffer(name, self._tensors[number])
        return name

    def _decoded(self, value: Any) -> Any:
        return decoded(value, self._known, self._most)


def _is_described(value: Tensor, by: Tensor) -> bool:
    same: bool = value.shape == by.shape and value.stride() == by.stride()
    return same and value.dtype is by.dtype


def _check_output(node: Node) -> None:
    """Raise ValueError unless the outputs are a list of values and numbers."""
    expect(len(node.args) == 1 and not node.kwargs, "the output")
    outputs: Any = node.args[0]
    expect(isinstance(outputs, list), "the output")
    for one in outputs:
        plain = one is None or isinstance(one, bool | int | float | complex | str)
        expect(plain or isinstance(one, Node), "the output")
    described = node.meta["val"]
    if described is None:
        return
    expect(isinstance(described, list) and len(described) == len(outputs), "the output")
    for one, value in zip(described, outputs, strict=True):
        alike = isinstance(one, Tensor) and isinstance(value, Node)
        expect(one is None or (alike and one.shape == val(value).shape), "the output")
