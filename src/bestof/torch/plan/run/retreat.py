"""One thread fewer, at once, where calls lose time to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from time import perf_counter, process_time

from bestof.idle_time import idle_seconds
from bestof.processors import processors

LOST, MOST = 0.001, 0.004
"""Seconds for which the thread of a call did not run: from which on they count, and as how many."""

TOGETHER, SOON = 0.005, 0.05
"""Seconds that two calls or more have lost, and within how many, when a retreat begins.

Neighbours keep a processor for 3 ms or more at a time. On a machine without neighbours, one call of
MobileNetV3 in 400 lost 1 ms or more, and two within `SOON` came once in 30 s.
"""

WINDOW = 0.1
"""Seconds for which processors are counted that others take: ten of the system's ticks."""

LONG_STEP = 0.001
"""Seconds of a step on fewer threads, from which on all threads are used.

A time slice takes 3 ms. Where a step takes as long, its threads need not wait for each other often.
"""

FREE = 0.3
"""Processors that others may take while all threads are used."""

UNCLEAR = 2.0
"""Seconds of calls after which a retreat ends if nothing tells whether others compute meanwhile."""

DEAF, DEAFEST = 1.0, 8.0
"""Seconds without a retreat after a false alarm: at first, and at most. Each one doubles them."""


@dataclass(slots=True)
class _Window:
    """What the system has counted up to a moment. seconds, steps: of the calls since then."""

    began: float
    idle: float | None
    own: float
    seconds: float = 0.0
    steps: int = 0


class Retreat:
    """Fewer threads for the calls of a program, from the moment when calls lose time to others.

    If a neighbour has the processor of a thread, the calling one sleeps until that has done its
    part. Two calls show that. The watch of the process needs two seconds for it, and a server that
    computes in bursts has none so long. Beside a busy process, calls of MobileNetV3 on two threads
    took 6 to 13 ms, and the first one of a burst up to 170, where 2 are usual: each region waited
    for a time slice of the neighbour.

    Meanwhile, the system tells how many processors neither idle nor run this process, and as many
    threads are used as there are others. Once neighbours take none, all threads are used, so no
    call needs to try them. Not safe for threads.
    """

    def __init__(self) -> None:
        self._threads = 0  # none: there is no retreat
        self._allowed: list[int] = []
        self._window = _Window(0.0, None, 0.0)
        self._is_known = False  # whether others do take processors
        self._unclear = 0.0  # seconds of calls, see UNCLEAR
        self._deaf, self._deaf_until = DEAF, 0.0
        self._first_at = self._lost = 0.0

    @property
    def is_open(self) -> bool:
        """Whether fewer threads are in use."""
        return self._threads > 0

    def lose(self, threads: int, seconds: float) -> None:
        """Note for how long the thread of a call, on all threads, did not run. May begin it."""
        now = perf_counter()
        if self._threads or threads < 2 or now < self._deaf_until:
            return
        if now - self._first_at > SOON:
            self._first_at, self._lost = now, 0.0
        self._lost += min(seconds, MOST)
        if self._lost < TOGETHER:
            return
        self._threads, self._is_known, self._unclear = threads - 1, False, 0.0
        self._allowed = sorted(processors().allowed)
        self._window = self._now()

    def threads(self, every: int) -> int:
        """Return how many threads run the next call."""
        return self._threads or every

    def tell(self, every: int, seconds: float, steps: int) -> None:
        """Note that a call of so many steps took so long. every: all threads."""
        window = self._window
        window.seconds += seconds
        window.steps += steps
        wall = perf_counter() - window.began
        if wall < WINDOW:
            return
        self._window = now = self._now()
        count, taken = len(self._allowed), 0.0
        if window.idle is not None and now.idle is not None:
            taken = count * wall - (now.idle - window.idle) - (now.own - window.own)
        free = count - ceil(taken / wall - FREE)
        are_short = window.seconds < LONG_STEP * window.steps
        if free < min(count, every) and are_short:
            if window.seconds > wall / 2:
                self._threads, self._is_known = max(1, free), True
                self._deaf, self._unclear = DEAF, 0.0
                return
            self._unclear += window.seconds  # others may have computed between the calls only
            if self._unclear < UNCLEAR:
                return
        self.end()
        if not self._is_known:
            self._deaf_until = perf_counter() + self._deaf
            self._deaf = min(DEAFEST, 2 * self._deaf)

    def end(self) -> None:
        """Use all threads again."""
        self._threads = 0

    def _now(self) -> _Window:
        return _Window(perf_counter(), idle_seconds(self._allowed), process_time())
