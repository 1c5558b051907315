"""Counts of the calls of each problem."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from bestof.entries import entries
from bestof.torch.backends.shim import Count

Key = TypeVar("Key", bound=Hashable)


class CallCounts(Generic[Key]):
    """Counts that threads may raise at once, with the interpreter's lock or without it.

    They have no lock that a fork could leave taken. Keys beyond `limit` are not counted.
    """

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        self._counts: dict[Key, Count] = {}

    def count(self, key: Key) -> None:
        next(self.counter(key))

    def counter(self, key: Key) -> Count:
        """Return the counter of a key; `next` of it adds one call without a look-up."""
        count = self._counts.get(key)
        if count is None:
            count = Count()
            if len(self._counts) < self._limit:
                count = self._counts.setdefault(key, count)
        return count

    def totals(self) -> dict[Key, int]:
        return {key: count.calls for key, count in entries(self._counts)}
