"""The order of samples of one epoch, from which all trials of the epoch draw.

The sampler of the loader is iterated once per epoch, as without bestof. Each trial draws its
indices through its own gate. A closed gate gives no more indices, so that a trial ends and all its
drawn batches are still delivered. If a trial fails, the indices that it drew but did not deliver
are put back. The next trial delivers them in their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


class SampleOrder:
    """The batches of indices of one epoch, in order. `dry` is true once the sampler has ended."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self._returned: deque[Any] = deque()
        self.dry = False

    def draw(self) -> Any:
        """Return the next indices. Raises StopIteration at the end of the epoch."""
        if self._returned:
            return self._returned.popleft()
        try:
            return next(self._indices)
        except StopIteration:
            self.dry = True
            raise

    def put_back(self, indices: list[Any]) -> None:
        """Put back indices that were drawn and not delivered."""
        self._returned.extendleft(reversed(indices))

    @property
    def has_returned(self) -> bool:
        """Whether there are indices that were put back."""
        return bool(self._returned)


class Gate:
    """The indices of one trial: an iterator that DataLoader uses as its sampler."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        self.drawn: deque[Any] = deque()  # drawn, but not delivered yet
        self.closed = False
        self._last = False

    def __iter__(self) -> Gate:
        return self

    def __next__(self) -> Any:
        if self.closed:
            if not self._last:
                raise StopIteration
            self._last = False
        indices = self._order.draw()
        self.drawn.append(indices)
        return indices

    def close_after_one(self) -> None:
        """Close after the next indices."""
        self.closed = self._last = True

    def delivered(self) -> Any:
        """Note that the oldest drawn batch has reached the loop.

        Return its indices, or None if they are unknown.
        """
        return self.drawn.popleft() if self.drawn else None

    def give_back(self) -> None:
        """Close, and put what was not delivered back into the order."""
        self.closed = True
        self._order.put_back(list(self.drawn))
        self.drawn.clear()
