"""What must hold for the nodes of a plan file, for kernels are given addresses."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.trace.graph import MULTIPLIED, value_of


def expect(right: bool, what: str) -> None:
    """Raise ValueError if something is not right."""
    if not right:
        raise ValueError(f"{what} does not fit the rest of the plan")


def val(node: Any) -> Tensor:
    """Return the tensor without data that describes a value; ValueError for other nodes."""
    value = value_of(node)
    if value is None:
        raise ValueError("a step does not read a tensor where it should")
    return value


def operation_of(node: Any) -> Operation | None:
    """Return the operation that computes a node; None if PyTorch does."""
    found = node.meta.get("operation") if isinstance(node, Node) else None
    return found if isinstance(found, Operation) else None


def is_rows(node: Any) -> bool:
    """Return whether a node is a value in channels last that lies in the arena."""
    operation = operation_of(node)
    if operation is None or not operation.yields_rows:
        return False
    return val(node).dim() == 4 and val(node).dtype in MULTIPLIED


def is_dense(node: Any) -> bool:
    """Return whether a node is a contiguous value that an operation puts into the arena."""
    operation = operation_of(node)
    if operation is None or operation.yields_rows or not operation.lies_in_arena:
        return False
    return val(node).dtype in MULTIPLIED and val(node).numel() > 0


def expect_pair(pair: Any, least: int, what: str, most: int = 2**15) -> None:
    """Raise ValueError unless a pair holds two whole numbers from `least` to `most`.

    Larger strides and paddings would overflow offsets that libraries keep in 32 bits.
    """
    right = isinstance(pair, tuple) and len(pair) == 2
    expect(right and all(type(n) is int and least <= n <= most for n in pair), what)


def is_alike(one: Node, other: Any) -> bool:
    """Return whether two values have the same shape and dtype."""
    return val(one).shape == val(other).shape and val(one).dtype is val(other).dtype
