"""Trials in which threads of this process waited for a processor, and the pause after each one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf

from bestof.thread_times import thread_times

LEAST = 100e-6
"""Seconds: no shorter trial waits or is watched."""

_WAITED = 0.03
"""The share of a trial's time for which a thread may wait: alternatives within 3 % are a tie."""

_TURN = 0.5e-3
"""Seconds: a thread that waited as long waited for another program's turn, which goes on.

The system's own work takes a processor for less.
"""

_PAUSE = 0.25
"""Seconds without a trial after one that waited for another program."""

_MOST = 10.0
"""Seconds of pauses, and of trials that do not count, that may follow on each other.

Neighbours that never rest must not end all tuning. Then trials count although they wait.
"""

_REGAINED = 0.5
"""Seconds of these that each second without a pause allows.

Beside neighbours that never rest, a third of the time is pauses in the end. Beside neighbours that
are busy in every other second, nearly all busy time of the first minute is.
"""

_LOOK = 100e-6
"""The seconds that a trial takes at least for each thread of the process: two looks take 10 us."""

Waits = Mapping[str, int]
"""For how many ns each thread of the process has waited for a processor since the thread began."""


class Crowd:
    """Watches for neighbours: other programs that want the same processors.

    The time of a trial in which a thread waited for a processor tells what the neighbours did. Such
    a trial does not count. A pause follows, in which the best alternative known so far answers.
    Beside processes that are busy in every other second, two tunings of VGG16 chose rows more than
    3 % apart for 17.7 % of its problems without pauses, and for 7.9 % with them.

    Linux alone tells how long threads wait. Elsewhere, all trials count.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        waits: Callable[[], Waits] | None = None,
    ) -> None:
        self._clock = clock
        self._waits = _waits_of_threads if waits is None else waits
        self._until = -inf  # the end of the pause
        self._left, self._reckoned = _MOST, clock()  # seconds that are allowed, and when
        self._threads = 1

    def is_here(self, least: float) -> bool:
        """Return whether a trial should wait. least: seconds of the fastest one of its problem."""
        return LEAST < least < inf and self._clock() < self._until

    def begin(self, least: float) -> Waits | None:
        """Return what `end` needs of a trial that begins; None if the trial is not watched."""
        if not max(LEAST, self._threads * _LOOK) < least < inf:
            return None
        found = self._waits()
        self._threads = len(found)
        return found or None

    def end(self, before: Waits, seconds: float) -> float:
        """Return for how many seconds a trial that has ended waited; 0.0 if the trial counts.

        This is the time of the thread that waited longest: the others wait for that one. A thread
        that does not compute, and waits, takes a processor from one that does.
        """
        waits = (waited - before.get(thread, 0) for thread, waited in self._waits().items())
        longest = max(waits, default=0) * 1e-9
        if longest <= _WAITED * seconds:
            return 0.0
        now = self._clock()
        if now >= self._until:  # else another thread's trial has begun the pause
            if not self._spend(_PAUSE if longest > _TURN else seconds, now):
                return 0.0
            if longest > _TURN:
                self._until = now + _PAUSE
        return min(longest, seconds)

    def _spend(self, seconds: float, now: float) -> bool:
        """Take what a trial costs that does not count; return whether there is enough left."""
        rested = now - max(self._reckoned, self._until)
        self._left, self._reckoned = min(_MOST, self._left + _REGAINED * rested), now
        if self._left < seconds:
            return False
        self._left -= seconds
        return True


def _waits_of_threads() -> Waits:
    return {thread: waited for thread, (_, waited) in thread_times().items()}
