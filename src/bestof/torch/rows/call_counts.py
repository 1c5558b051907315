"""Counts of the calls of each problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

from bestof.entries import entries
from bestof.torch.backends.shim import Count
from bestof.torch.ops.search_settings import PATIENCE

Key = TypeVar("Key", bound=Hashable)

_PLACED = 8  # the first calls of a problem, whose modules are noted


class CallCounts(Generic[Key]):
    """Counts that threads may raise at once, with the interpreter's lock or without it.

    The counts have no lock that a fork could leave taken. At most `limit` keys are counted. At the
    limit, keys with few calls are forgotten: a server meets each shape a few times. `where` tells
    which module makes the present call; None if no report wants to know.
    """

    where: ClassVar[Callable[[], tuple[str, str] | None] | None] = None

    def __init__(self, limit: int = 2048) -> None:
        self._limit = limit
        self._counts: dict[Key, Count] = {}
        self._full = False  # of keys with many calls
        self.places: dict[Key, dict[tuple[str, str], None]] = {}

    def count(self, key: Key) -> None:
        next(self.counter(key))

    def counter(self, key: Key) -> Count:
        """Return the counter of a key. `next(counter)` adds one call without a look-up."""
        count = self._counts.get(key)
        if count is None:
            count = Count()
            if len(self._counts) >= self._limit and not self._full:
                self._forget_rare()
            if len(self._counts) < self._limit:
                count = self._counts.setdefault(key, count)
        if CallCounts.where is not None and count.calls < _PLACED and key in self._counts:
            place = CallCounts.where()
            if place is not None:
                self.places.setdefault(key, {})[place] = None
        return count

    def _forget_rare(self) -> None:
        for key, count in entries(self._counts):
            if count.calls <= PATIENCE:
                self._counts.pop(key, None)
                self.places.pop(key, None)
        # Another look at each new key would cost more than it frees.
        self._full = len(self._counts) > self._limit // 2

    def totals(self) -> dict[Key, int]:
        return {key: count.calls for key, count in entries(self._counts)}
