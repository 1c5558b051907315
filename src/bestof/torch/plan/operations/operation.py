"""What an operation of a plan is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step


class Operation(ABC):
    """What a node of a fused graph computes, in place of PyTorch's operator.

    A trace consists of PyTorch's operators. Each operation recognises operators that it can
    compute, and puts a node in their place: the operation is `meta["operation"]` of this node. When
    the program is bound to memory, the operation makes the node's step, once: a call only runs the
    steps. Nodes without an operation run by PyTorch. An operation is a frozen dataclass; a plan
    file holds its fields.

    name: in files and reports. reads_rows: whether its arguments are values (N, C, H, W) in
    channels last that lie in the arena. yields_rows: whether its result is such a value. Any other
    result lies in the arena too, contiguous. reads_parts: whether its arguments may be parts of
    wider rows, whose last axis has stride 1. reads_parameters: whether parameters among its
    arguments are read where they lie, in no layout of values. overwrites_last: whether the result
    may lie where the last of several arguments does, if no other step reads that: each element is
    read just before it is written. overwrites_first: the same for the first argument.
    """

    __slots__ = ()
    name: ClassVar[str]
    reads_rows: ClassVar[bool] = False
    yields_rows: ClassVar[bool] = False
    reads_parts: ClassVar[bool] = False
    reads_parameters: ClassVar[bool] = False
    overwrites_last: ClassVar[bool] = False
    overwrites_first: ClassVar[bool] = False

    @property
    def lies_in_arena(self) -> bool:
        """Whether the result lies in the arena. Other results pass through their slots."""
        return True

    def reads_planes(self, node: Node) -> bool:  # noqa: ARG002  # most do not
        """Return whether a node takes its first argument as it lies, although it reads rows."""
        return False

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the functions that replace nodes, by the operator that each function looks for."""
        return {}

    def writes_part(self, node: Node) -> bool:  # noqa: ARG002  # few can
        """Return whether the result may lie in a part of the channels of wider pixels."""
        return False

    def parts(self, node: Node) -> Mapping[Node, int]:  # noqa: ARG002  # for concatenations
        """Return the arguments that may lie where the result has them, and their first channels."""
        return {}

    def absorb(self, rewriter: Rewriter, node: Node) -> None:  # noqa: B027  # most absorb nothing
        """Take following nodes into this one, if the operation can compute them as well."""

    def workspace(self, node: Node) -> tuple[int, ...] | None:  # noqa: ARG002  # most need none
        """Return the shape (N, C, H, W) of the memory that the step needs beside its result."""
        return None

    def choice(self, node: Node, accuracy: Accuracy) -> Choice | None:  # noqa: ARG002  # most: none
        """Return a new choice of what runs a node; None if there is nothing to choose."""
        return None

    @abstractmethod
    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step of a node, bound to memory."""

    @abstractmethod
    def check(self, node: Node) -> None:
        """Raise ValueError if a node that was read from a file does not fit its arguments."""

    def encode(self, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
        """Return the operation as JSON; `number` gives weights their number in the file."""
        return {"name": self.name, **encoded_fields(self, number)}

    @classmethod
    def decode(cls, content: dict[str, Any], weights: list[FrozenWeights]) -> Operation:
        """Return the operation of a JSON value."""
        return cls(**decoded_fields(content, weights))


def encoded_fields(value: Any, number: Callable[[FrozenWeights], int]) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON."""
    encoded = {}
    for field in fields(value):
        one = getattr(value, field.name)
        encoded[field.name] = number(one) if isinstance(one, FrozenWeights) else one
    return encoded


def decoded_fields(content: dict[str, Any], weights: list[FrozenWeights]) -> dict[str, Any]:
    """Return the arguments that make the dataclass again."""

    def decoded(name: str, value: Any) -> Any:
        if name == "weights":
            return None if value is None else weights[value]
        return tuple(value) if isinstance(value, list) else value

    return {name: decoded(name, value) for name, value in content.items() if name != "name"}
