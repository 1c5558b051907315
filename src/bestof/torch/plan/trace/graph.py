"""Functions that ask about the nodes of a traced graph, used to recognise operations."""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

Pair = tuple[int, int]
aten = torch.ops.aten

# Views of contiguous values.
RESHAPING = frozenset({aten.reshape.default, aten.flatten.using_ints})

# Operators that always return a view, whatever the strides of their argument.
VIEWING = frozenset(
    {
        aten.slice.Tensor,
        aten.select.int,
        aten.transpose.int,
        aten.permute.default,
        aten.unsqueeze.default,
    }
)


# The types of linear layers and attention that native kernels compute.
MULTIPLIED = frozenset({torch.float32, torch.bfloat16})
_FLOAT32 = frozenset({torch.float32})


class PlainGraph(nn.Module):
    """A graph, and the tensors that it reads as buffers.

    A GraphModule would compile Python code from the names and arguments of its nodes. Nothing is
    compiled here: the nodes of a plan file may hold any text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()


def constant(module: GraphModule, node: Any) -> Tensor | None:
    """Return the parameter or buffer that a node reads; None for other nodes."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(module)
    return value if isinstance(value, Tensor) else None


def value_of(node: Any) -> Tensor | None:
    """Return the tensor without data that describes a node's value; None for other values."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value, which is a tensor."""
    value = value_of(node)
    if value is None:
        raise ValueError("a step does not read a tensor where it should")
    return tuple(value.shape)


def is_plain(node: Any, dim: int | None = None, dtypes: Container[torch.dtype] = _FLOAT32) -> bool:
    """Return whether native kernels can use a value: dense, on the CPU, not empty."""
    value = value_of(node)
    return (
        value is not None
        and value.dtype in dtypes
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and (dim is None or value.dim() == dim)
        and 0 not in value.shape
    )


def argument(node: Node, name: str) -> Any:
    """Return an argument by its name in the schema; its default if no argument was given."""
    for position, one in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if one.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, one.default_value)
    raise KeyError(name)


def pair(value: Any) -> Pair:
    """Return (y, x) of an argument that is one number or two."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def only_user(node: Node) -> Node | None:
    """Return the node that reads a value, if there is just one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def other_argument(node: Node, one: Node) -> Any:
    """Return the argument of a sum or product beside `one`."""
    return node.args[1] if node.args[0] is one else node.args[0]


def behind(node: Node) -> Node:
    """Return the node to insert a reader of a value behind: the last input stands for all inputs.

    A program finds its inputs by their place, before all other nodes.
    """
    if node.op != "placeholder":
        return node
    *_, last = (one for one in node.graph.nodes if one.op == "placeholder")
    assert isinstance(last, Node)
    return last


def fused(*_: Any) -> Any:
    """Mark a node that an operation of `operations/` computes; never called."""
    raise AssertionError
