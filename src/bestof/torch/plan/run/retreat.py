"""Fewer threads, at once, where the threads of calls do not get a processor."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from time import perf_counter, process_time

from bestof.idle_time import idle_seconds
from bestof.processors import processors

LOST = 0.001
"""Seconds for which the thread of a call did not run, from which on the call counts."""

MOST = 0.004
"""Seconds that one call can count: a single long wait is no sign of a neighbour."""

TOGETHER, SOON = 0.005, 0.05
"""Seconds that calls lose together, and within how many, when a retreat begins.

Neighbours keep a processor for 3 ms or more at a time. On a machine without neighbours, one call of
MobileNetV3 in 400 lost 1 ms or more, and two within `SOON` came once in 30 s.
"""

WINDOW = 0.07
"""Seconds between two readings of what neighbours take, for one processor.

The system counts in steps of 10 ms for each processor. So the error of a reading grows with the
square root of their number, and with it this time: 0.1 s for two processors, 0.6 s for 64.
"""

FREE = 0.3
"""Processors that neighbours may take while all threads are used."""

LONG_STEP = 0.001
"""Seconds of a step on fewer threads, from which on all threads are used.

A time slice takes 3 ms. Where a step takes as long, its threads need not wait for each other often.
"""

SHORTEST, LONGEST = 2.0, 16.0
"""Seconds of a retreat. Then all threads are tried.

Other processes may compute between the calls only, in turn with this one. The next retreat is twice
as long if it begins at once.
"""

OLD = 0.5
"""Seconds between two calls, after which a retreat is forgotten."""

DEAF, DEAFEST = 1.0, 8.0
"""Seconds without a retreat after one that was shorter than `DEAF`. Each one doubles them."""


@dataclass(slots=True)
class _Reading:
    """What the system has counted up to a moment: seconds of idle processors, and of this process.

    seconds, steps: those of the calls since then.
    """

    at: float
    idle: float | None
    own: float
    seconds: float = 0.0
    steps: int = 0


class Retreat:
    """Fewer threads for the calls of a program, from the moment when calls lose time.

    If a neighbour has the processor of a thread, the calling one sleeps until that has done its
    part. Two calls show that. The watch of the process needs two seconds for it, and a server that
    computes in bursts has none so long. Beside a busy process, calls of MobileNetV3 on two threads
    took 6 to 13 ms, and the first one of a burst up to 170, where 2 are usual: each region waited
    for a time slice of the neighbour.

    Meanwhile, the system tells how many processors neither idle nor run this process. Once
    neighbours take none, all threads are used. Not safe for threads.
    """

    def __init__(self) -> None:
        self._threads = 0  # none: there is no retreat
        self._allowed: list[int] = []
        self._reading = _Reading(0.0, None, 0.0)
        self._began = self._ended = 0.0
        self._length = SHORTEST
        self._deaf = self._deaf_until = 0.0
        self._first_at = self._lost = 0.0

    @property
    def is_open(self) -> bool:
        """Whether fewer threads are in use."""
        return self._threads > 0

    def note_loss(self, every: int, seconds: float) -> None:
        """Note for how long the thread of a call on all threads did not run.

        A retreat may begin.
        """
        now = perf_counter()
        if self._threads or every < 2 or now < self._deaf_until:
            return
        if now - self._first_at > SOON:
            self._first_at, self._lost = now, 0.0
        self._lost += min(seconds, MOST)
        if self._lost < TOGETHER:
            return
        is_again = now - self._ended < DEAF
        self._length = min(LONGEST, 2 * self._length) if is_again else SHORTEST
        self._threads, self._began = every - 1, now
        self._allowed = sorted(processors().allowed)
        self._reading = self._read()

    def threads(self, every: int) -> int:
        """Return how many threads run the next call."""
        return self._threads or every

    def tell(self, every: int, seconds: float, steps: int) -> None:
        """Note that a call of so many steps took so long. every: all threads."""
        before = self._reading
        before.seconds += seconds
        before.steps += steps
        passed = perf_counter() - before.at
        if passed < WINDOW * sqrt(len(self._allowed)):
            return
        self._reading = self._read()
        are_short = before.seconds < LONG_STEP * before.steps
        is_over = self._reading.at - self._began > self._length
        fewer = self._fewer(every, before, self._reading)
        if fewer < every and are_short and not is_over:
            self._threads = fewer
        else:
            self.end()

    def end(self) -> None:
        """Use all threads again."""
        if not self._threads:
            return
        self._threads, self._ended = 0, perf_counter()
        is_short = self._ended - self._began < DEAF
        self._deaf = max(DEAF, min(DEAFEST, 2 * self._deaf)) if is_short else 0.0
        self._deaf_until = self._ended + self._deaf

    def forget(self) -> None:
        """Use all threads again after a pause. The next alarm counts at once."""
        self._threads = 0

    def _fewer(self, every: int, before: _Reading, now: _Reading) -> int:
        """Return the number of threads for which neighbours leave processors, `every` at most."""
        count, passed = len(self._allowed), now.at - before.at
        if before.idle is None or now.idle is None:
            return every
        own = (now.own - before.own) / passed
        taken = count - (now.idle - before.idle) / passed - own
        busy = taken
        if own + taken > count - FREE and own > 0:
            # Nothing idles, so neighbours may want more than they take. Each thread that computes
            # gets the same share.
            calls = min(1.0, before.seconds / passed)
            busy = max(taken, taken * self._threads * calls / own)
        if busy <= FREE or busy + every <= count:
            return every
        return min(every, max(1, int(count * every / (every + busy))))

    def _read(self) -> _Reading:
        return _Reading(perf_counter(), idle_seconds(self._allowed), process_time())
