"""Checks of the steps of a plan file that PyTorch computes: shapes and types are derived again."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.utils import _pytree as pytree

from bestof.torch.plan.operations.checks import expect
from bestof.torch.plan.run.unchecked_operands import arguments_of, expect_operands
from bestof.torch.plan.trace.mutation import changed_argument, root_of
from bestof.torch.plan.trace.traced import silent

# More than any operator needs, and few enough that no sum of products of two leaves 64 bits. The
# end of a slice may be the largest number there is.
_LARGEST = 2**40
_END = 2**63 - 1
_MOST_PARTS = 65_536

_DIVIDING = {"chunk", "unsafe_chunk", "hsplit", "vsplit", "dsplit", "tensor_split"}
_STEPPING = {"split", "split_copy", "unsafe_split"}


class Recomputed:
    """Derives the result of each operator from its arguments, by tensors without data.

    PyTorch's operators check their arguments when they derive a shape. So only calls pass that a
    model may have traced. Kernels that read a result later rely on its shape and type.
    """

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    def check(self, node: Node) -> None:
        """Raise an error if an operator does not take its arguments, or returns something else.

        Also raise an error if the operator would change anything but an input.
        """
        target: Any = node.target
        if target is operator.getitem:
            _check_part(node)
            return
        _check_options(node)
        changed = changed_argument(node)
        if changed is not None:
            expect(root_of(changed).op == "placeholder", f"what {node.name} changes")
        with self._running():
            args, kwargs = pytree.tree_map_only(Node, _described, (tuple(node.args), node.kwargs))
            result = target(*args, **kwargs)
        found, recorded = _leaves(result), _leaves(node.meta["val"])
        same = len(found) == len(recorded) and all(map(_alike, found, recorded))
        expect(same, node.name)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Enter the mode in which tensors have no data."""
        with (
            silent("torch._subclasses.fake_tensor"),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            self._mode,
        ):
            yield


def _described(node: Node) -> Any:
    """Return the value of an argument, in the running mode."""

    def like(one: Tensor) -> Tensor:
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cpu")

    return pytree.tree_map_only(Tensor, like, node.meta["val"])


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves(value)
    return leaves


def _alike(found: Any, recorded: Any) -> bool:
    if isinstance(found, Tensor) and isinstance(recorded, Tensor):
        return found.shape == recorded.shape and found.dtype is recorded.dtype
    return type(found) is type(recorded) and bool(found == recorded)


def _check_part(node: Node) -> None:
    """Check an element that is taken from a list of values."""
    expect(len(node.args) == 2 and not node.kwargs, node.name)
    values, place = node.args
    listed: Any = values.meta["val"] if isinstance(values, Node) else None
    expect(isinstance(listed, list), node.name)
    right = isinstance(place, int) and 0 <= place < len(listed)
    expect(right and type(place) is int, node.name)
    expect(len(_leaves(listed)) == len(listed), node.name)
    expect(_alike(listed[place], node.meta["val"]), node.name)


def _check_options(node: Node) -> None:
    """Raise ValueError for options that change state, and for sizes that no model has."""
    target: Any = node.target
    schema, given = target._schema, dict(node.kwargs)
    expect(len(node.args) <= len(schema.arguments), node.name)
    given |= {one.name: value for one, value in zip(schema.arguments, node.args, strict=False)}
    for one in schema.arguments:
        value = given.get(one.name, one.default_value)
        # Batches of packed sequences are not checked; a norm in training changes its statistics,
        # and dropout the state of random numbers.
        expect(one.name != "batch_sizes" or value == [], node.name)
        expect(one.name != "train" or value is False, node.name)
        expect(one.name != "dropout_p" or value == 0, node.name)
        if one.name in ("training", "use_input_stats"):
            statistics = [given.get(name) for name in ("running_mean", "running_var")]
            expect(value is False or statistics == [None, None], node.name)
        if "int" in str(one.type).lower():
            for number in pytree.tree_leaves(value):
                expect(not isinstance(number, int) or _is_usual(number), node.name)
    _check_parts(node, given)
    described = pytree.tree_map_only(Node, lambda one: one.meta["val"], given)
    expect_operands(target, arguments_of(target, (), described), node.name)


def _is_usual(number: int) -> bool:
    return abs(number) <= _LARGEST or number == _END


def _check_parts(node: Node, given: dict[str, Any]) -> None:
    """Raise ValueError if an operator would make more parts than memory can list."""
    target: Any = node.target
    packet = target._schema.name.removeprefix("aten::")
    whole = given.get("self", given.get("input"))
    extents = _extents(whole)
    sizes = [one for name, one in given.items() if name not in ("self", "input", "dim")]
    numbers = [one for one in sizes if type(one) is int]
    if packet in _DIVIDING:
        expect(all(0 < one <= _MOST_PARTS for one in numbers), node.name)
    elif packet in _STEPPING:
        least = min(numbers, default=1)
        expect(all(one <= _MOST_PARTS * max(least, 1) for one in extents), node.name)
    elif packet in ("unbind", "unbind_copy"):
        expect(len(node.meta["val"]) <= _MOST_PARTS, node.name)
        dim = given.get("dim", 0)
        expect(extents[dim] == len(node.meta["val"]), node.name)


def _extents(node: Any) -> list[int]:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return list(value.shape) if isinstance(value, Tensor) else []
