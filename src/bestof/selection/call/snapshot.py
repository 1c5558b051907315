"""The values of the arguments of a call at one moment, to see which a call has changed."""

from __future__ import annotations

import operator
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from bestof.selection.interrupts import reraise_from_outside

_MOST = 10_000  # the most values that are looked at
_DEEPEST = 16  # levels of containers that are looked at
_SCALARS = (type(None), bool, int, float, complex, str, bytes)

Place = int | str  # of an argument: a position or a keyword


class Snapshot:
    """The values of all arguments that a call can change: arrays, lists, dicts, sets and buffers.

    Also of those inside of lists, tuples and dicts. Not of the attributes of other objects.
    """

    __slots__ = ("_kept", "_left", "_seen")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._kept: list[tuple[Place, _Kept]] = []
        self._left = _MOST
        self._seen: set[int] = set()
        for place, value in _places(args, kwargs):
            self._visit(place, value, 0)

    def changed(self) -> list[Place]:
        """Return the places of the arguments whose values have changed since."""
        found = dict.fromkeys(place for place, kept in self._kept if not kept.holds())
        return list(found)

    def put_back(self) -> None:
        """Give every argument the value that it had."""
        for _, kept in self._kept:
            if not kept.holds():
                kept.put_back()

    def _visit(self, place: Place, value: Any, depth: int) -> None:
        kind = type(value)
        self._left -= 1
        if kind in _SCALARS or id(value) in self._seen or depth > _DEEPEST or self._left < 0:
            return
        self._seen.add(id(value))
        kept = _kept(value)
        if kept is not None:
            self._kept.append((place, kept))
        if isinstance(value, list | tuple | deque):
            for one in value:
                if type(one) not in _SCALARS:
                    self._visit(place, one, depth + 1)
        elif isinstance(value, dict):
            for one in value.values():
                if type(one) not in _SCALARS:
                    self._visit(place, one, depth + 1)


def argument(place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument at a place."""
    return args[place] if isinstance(place, int) else kwargs[place]


def _places(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    yield from enumerate(args)
    yield from kwargs.items()


class _Kept:
    """One object, and a copy of its value."""

    __slots__ = ("_copy", "_object", "_put", "_same")

    def __init__(
        self,
        value: Any,
        copy: Any,
        same: Callable[[Any, Any], bool],
        put: Callable[[Any, Any], object],
    ) -> None:
        self._object = value
        self._copy = copy
        self._same = same
        self._put = put

    def holds(self) -> bool:
        """Return whether the object still has the value, as far as can be told."""
        try:
            return self._same(self._object, self._copy)
        except Exception:  # a user's object may refuse anything
            reraise_from_outside()
            return True

    def put_back(self) -> None:
        """Give the object the value."""
        self._put(self._object, self._copy)


def _kept(value: Any) -> _Kept | None:
    """Return an object with a copy of its value; None if it cannot change, or not be copied."""
    try:
        if isinstance(value, list | deque):
            return _Kept(value, list(value), _same_items, _put_items)
        if isinstance(value, dict):
            return _Kept(value, dict(value), _same_entries, _put_entries)
        if isinstance(value, set):
            return _Kept(value, set(value), operator.eq, _put_members)
        if isinstance(value, bytearray | array):
            return _Kept(value, value[:], _same_bytes, _put_slice)
        if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__setitem__"):
            return _kept_array(value)
    except Exception:  # a user's object may refuse anything
        reraise_from_outside()
    return None


def _kept_array(value: Any) -> _Kept:
    if hasattr(value, "requires_grad"):  # torch
        return _Kept(value, value.detach().clone(), _same_values, _put_tensor)
    return _Kept(value, value.copy(), _same_values, _put_array)


def _same_items(value: Any, copy: list[Any]) -> bool:
    return len(value) == len(copy) and all(map(_is_same, value, copy))


def _same_entries(value: dict[Hashable, Any], copy: dict[Hashable, Any]) -> bool:
    return list(value) == list(copy) and all(map(_is_same, value.values(), copy.values()))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _SCALARS and one == other)


def _same_bytes(value: Any, copy: Any) -> bool:
    return bytes(memoryview(value)) == bytes(memoryview(copy))


def _same_values(value: Any, copy: Any) -> bool:
    if tuple(value.shape) != tuple(copy.shape) or str(value.dtype) != str(copy.dtype):
        return False
    if hasattr(value, "requires_grad"):
        value = value.detach()
    same = value == copy
    nan = (value != value) & (copy != copy)  # noqa: PLR0124  # NaN is not equal to itself
    return bool((same | nan).all())


def _put_items(value: Any, copy: list[Any]) -> None:
    value.clear()
    value.extend(copy)


def _put_entries(value: dict[Hashable, Any], copy: dict[Hashable, Any]) -> None:
    value.clear()
    value.update(copy)


def _put_members(value: set[Any], copy: set[Any]) -> None:
    value.clear()
    value.update(copy)


def _put_slice(value: Any, copy: Any) -> None:
    value[:] = copy


def _put_array(value: Any, copy: Any) -> None:
    if value.shape != copy.shape:
        value.shape = copy.shape
    value[...] = copy


def _put_tensor(value: Any, copy: Any) -> None:
    # `data` leaves the counter of versions alone, so that a graph of gradients holds what it has.
    if value.shape == copy.shape and value.dtype == copy.dtype:
        value.data.copy_(copy)
    else:
        value.data = copy.clone()
