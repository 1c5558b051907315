"""Counts of the calls of each problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

from bestof.entries import entries
from bestof.torch.backends.shim import Count

Key = TypeVar("Key", bound=Hashable)

_PLACED = 8  # the first calls of a problem, whose modules are noted


class CallCounts(Generic[Key]):
    """Counts that threads may raise at once, with the interpreter's lock or without it.

    They have no lock that a fork could leave taken. Keys beyond `limit` are not counted. `where`
    tells which module makes the present call; None if no report wants to know.
    """

    where: ClassVar[Callable[[], tuple[str, str] | None] | None] = None

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        self._counts: dict[Key, Count] = {}
        self.places: dict[Key, dict[tuple[str, str], None]] = {}

    def count(self, key: Key) -> None:
        next(self.counter(key))

    def counter(self, key: Key) -> Count:
        """Return the counter of a key; `next` of it adds one call without a look-up."""
        count = self._counts.get(key)
        if CallCounts.where is not None and (count is None or count.calls < _PLACED):
            place = CallCounts.where()
            if place is not None:
                self.places.setdefault(key, {})[place] = None
        if count is None:
            count = Count()
            if len(self._counts) < self._limit:
                count = self._counts.setdefault(key, count)
        return count

    def totals(self) -> dict[Key, int]:
        return {key: count.calls for key, count in entries(self._counts)}
