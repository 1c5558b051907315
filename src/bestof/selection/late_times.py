"""Times that are known later: of calls that return before the device has done what they order.

Nothing waits for a time. While that of a trial is out, and while the timer is paused, calls of its
problem go to the best alternative known; the next call that finds it hands it to the policy.
"""

from __future__ import annotations

from math import nan
from statistics import median
from typing import Any

from bestof.selection.timer import LateTrial, TimedTrial, Timer, Timing
from bestof.selection.tuning import Tuning


class LateTimes:
    """The trials of one selector whose times are out: one of each problem at most.

    Once the timer has raised, nothing is tried any more: the device is gone, or will never tell.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._broken = False
        self._fault: Exception | None = None  # until it was told

    def start(self, args: tuple[Any, ...]) -> Timing | None:
        """Begin to time a trial; None, and a trial that does not count, where that cannot be."""
        try:
            return self._timer.start(args)
        except Exception as error:
            self._give_up(error)
            return None

    def stop(self, timing: Timing) -> Timing | None:
        """The call of a trial has returned."""
        try:
            timing.stop()
        except Exception as error:
            self._give_up(error)
            return None
        return timing

    def wait(self, trial: TimedTrial, tuning: Tuning, timing: Timing) -> None:
        """Book this trial as soon as its time is known. Of two that threads began at once, the
        first is kept."""
        if tuning.out is None:
            tuning.out = LateTrial(trial, timing)

    def harvest(self, tuning: Tuning) -> None:
        """Book what is known by now of a problem's trial. Called with the selector's lock held."""
        found = tuning.out
        if found is None or self._is_paused():
            return
        try:
            seconds = found.timing.seconds()
        except Exception as error:
            self._give_up(error)
            seconds = nan
        if seconds is None:
            return
        tuning.out = None
        found.trial.book_late(seconds)

    def best_known(self, tuning: Tuning) -> int | None:
        """Who answers a call that cannot be a trial: the lowest median so far, or the first; None
        where it can be."""
        if tuning.out is None and not self._broken and not self._is_paused():
            return None
        known = [
            (median(tuning.candidates[p].samples), p)
            for p in tuning.remaining()
            if tuning.candidates[p].samples
        ]
        return min(known)[1] if known else tuning.remaining()[0]

    def take_fault(self) -> Exception | None:
        """What the timer has raised, the first time that anybody asks."""
        fault, self._fault = self._fault, None
        return fault

    def _is_paused(self) -> bool:
        try:
            return self._timer.paused
        except Exception as error:
            self._give_up(error)
            return True

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            self._broken, self._fault = True, error
