"""The account of what tuning has cost. A trial waits while it would cost more than its share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from bestof.selection.notice import warn
from bestof.selection.trials.crowd import Crowd, Waits

SHARE = 0.05  # of the time since the first trial, by default

_FREE = 0.1  # seconds that trials may always cost, so that short runs are tuned too
# A call that waits takes the long way, which costs so many seconds too. A dearer trial waits.
_LONG_WAY = 50e-6
LEAST_COST = 2 * _LONG_WAY
"""Seconds that a trial of a dearer problem is taken to cost at least."""

_is_lifted: ContextVar[bool] = ContextVar("_is_lifted", default=False)


class Budget:
    """The account of what trials and first comparisons have cost.

    A trial costs what it took beyond the fastest trial of its problem so far. The first trial of a
    problem costs nothing: the program needs that call. A comparison costs all of its time.
    `allows` says whether a trial may be begun. If it may not, the best alternative known so far
    answers the call, or else the first one. A trial waits for the same reason while neighbours want
    the processors, see `Crowd`.

    The process has one account for all selectors that go by `time.perf_counter`. A selector with
    another clock has an account of its own, and knows no neighbours. The environment variable
    BESTOF_BUDGET=off lifts all budgets, for programs that measure what a whole search finds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        asked = os.environ.get("BESTOF_BUDGET", "").strip()
        self.is_on = asked != "off"
        if asked not in ("", "off"):
            warn(
                f"BESTOF_BUDGET: expected 'off'; got {asked!r}, which has no effect; set another "
                "share by `BestOf(budget=)` or kernel.budget"
            )
        self.lost = 0.0  # seconds
        self.waited = 0  # grows whenever a trial has to wait
        self.crowded = 0  # grows whenever a trial has to wait for neighbours
        self.crowd = Crowd() if clock is time.perf_counter else None
        self._clock = clock
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds since the first entry: the end of the first trial."""
        return 0.0 if self._began is None else self._clock() - self._began

    def book(self, seconds: float) -> None:
        """Note what a trial or a comparison has cost."""
        if self._began is None:
            self._began = self._clock()
        if 0.0 < seconds < inf and not _is_lifted.get():
            self.lost += seconds

    def has_left(self, share: float | None) -> bool:
        """Return whether the account is not used up, or does not count."""
        if share is None or not self._counts(share):
            return True
        return self.lost < max(_FREE, share * self.seconds)

    def is_crowded(self, share: float | None, least: float) -> bool:
        """Return whether a trial waits for neighbours. least: seconds of its problem's fastest."""
        if self.crowd is None or not self._counts(share) or not self.crowd.is_here(least):
            return False
        self.crowded += 1
        return True

    def watch(self, share: float | None, least: float) -> Waits | None:
        """Return what `waited_in` needs of a trial that begins; None if it is not watched."""
        if self.crowd is None or not self._counts(share):
            return None
        return self.crowd.begin(least)

    def waited_in(self, before: Waits, seconds: float) -> float:
        """Return for how many seconds a trial waited for neighbours; 0.0 if it counts."""
        return 0.0 if self.crowd is None else self.crowd.end(before, seconds)

    def _counts(self, share: float | None) -> bool:
        return share is not None and self.is_on and not _is_lifted.get()

    def allows(self, share: float | None, cost: float) -> bool:
        """Return whether a trial may be begun that would cost so many seconds.

        share: of the time since the first trial, for all trials; None for no bound.
        """
        if share is None or not self._counts(share) or cost <= _LONG_WAY:
            return True
        lost = self.lost + cost
        if lost <= _FREE or lost <= share * self.seconds:
            return True
        self.waited += 1
        return False


@contextmanager
def lifted() -> Iterator[None]:
    """Lift all budgets in this context: the program has ordered to tune, and waits for the end."""
    token = _is_lifted.set(True)
    try:
        yield
    finally:
        _is_lifted.reset(token)
