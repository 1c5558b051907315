"""The order of samples of one epoch, which all trials of the epoch draw from.

The sampler of the loader is iterated once an epoch, as ever. Each trial draws its indices through a
gate of its own. A closed gate gives no more, so a trial ends without losing what is still under
way. If a trial fails, what it drew and did not deliver goes back, and the next one delivers it in
its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


class Tap:
    """The batches of indices of one epoch, in order."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self._returned: deque[Any] = deque()
        self.dry = False  # whether the sampler has ended

    def draw(self) -> Any:
        """Return the next indices; StopIteration if the epoch has no more."""
        if self._returned:
            return self._returned.popleft()
        try:
            return next(self._indices)
        except StopIteration:
            self.dry = True
            raise

    def put_back(self, indices: list[Any]) -> None:
        """Take back what was drawn and not delivered."""
        self._returned.extendleft(reversed(indices))

    @property
    def has_returned(self) -> bool:
        """Return whether there is something that was put back."""
        return bool(self._returned)


class Gate:
    """What one trial draws from the tap: an iterator of indices, which DataLoader takes as its
    sampler."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.drawn: deque[Any] = deque()  # and not delivered yet
        self.closed = False
        self._last = False

    def __iter__(self) -> Gate:
        return self

    def __next__(self) -> Any:
        if self.closed:
            if not self._last:
                raise StopIteration
            self._last = False
        indices = self._tap.draw()
        self.drawn.append(indices)
        return indices

    def close_after_one(self) -> None:
        """Close behind the next indices."""
        self.closed = self._last = True

    def delivered(self) -> Any:
        """Note that the oldest drawn batch has reached the loop; return its indices, None if they
        are unknown."""
        return self.drawn.popleft() if self.drawn else None

    def give_back(self) -> None:
        """Close, and hand what was not delivered back to the tap."""
        self.closed = True
        self._tap.put_back(list(self.drawn))
        self.drawn.clear()
