"""Counts of the calls of each problem."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from bestof.entries import entries
from bestof.torch.backends.shim import Count
from bestof.torch.dispatch.search import PATIENCE

Key = TypeVar("Key", bound=Hashable)


class CallCounts(Generic[Key]):
    """Counts that threads may raise at once, with the interpreter's lock or without it.

    They have no lock that a fork could leave taken. At most `limit` keys are counted. When there
    are so many, those with few calls are forgotten: a server meets each shape a few times.
    """

    def __init__(self, limit: int = 2048) -> None:
        self._limit = limit
        self._counts: dict[Key, Count] = {}
        self._full = False  # of keys with many calls

    def count(self, key: Key) -> None:
        next(self.counter(key))

    def counter(self, key: Key) -> Count:
        """Return the counter of a key; `next` of it adds one call without a look-up."""
        count = self._counts.get(key)
        if count is None:
            count = Count()
            if len(self._counts) >= self._limit and not self._full:
                self._forget_rare()
            if len(self._counts) < self._limit:
                count = self._counts.setdefault(key, count)
        return count

    def _forget_rare(self) -> None:
        for key, count in entries(self._counts):
            if count.calls <= PATIENCE:
                self._counts.pop(key, None)
        # Another look at each new key would cost more than it frees.
        self._full = len(self._counts) > self._limit // 2

    def totals(self) -> dict[Key, int]:
        return {key: count.calls for key, count in entries(self._counts)}
