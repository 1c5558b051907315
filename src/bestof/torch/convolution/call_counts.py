"""How often each problem was met."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from itertools import repeat
from operator import length_hint
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class CallCounts(Generic[Key]):
    """Counts that many threads may raise at once, without a lock that a fork could leave taken.

    A count is what is left of an iterator: `next` is one step in C, which `+= 1` is not. Keys beyond `limit` are not
    counted.
    """

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        self._left: dict[Key, repeat[None]] = {}

    def count(self, key: Key) -> None:
        """One call more."""
        next(self.counter(key))

    def counter(self, key: Key) -> Iterator[None]:
        """`next` of it is one call more, without looking the key up."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= self._limit:
                return repeat(None)
            left = self._left.setdefault(key, repeat(None, sys.maxsize))
        return left

    def totals(self) -> dict[Key, int]:
        """The calls of each key that was met."""
        return {key: sys.maxsize - length_hint(left) for key, left in list(self._left.items())}
