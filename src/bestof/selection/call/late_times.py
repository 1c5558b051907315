"""Times of calls that return before the device has done their work.

bestof never waits for a time. While the time of a trial is unknown, and while the timer is paused,
the best known alternative answers the calls of the problem. The first call after the time is known
hands it to the policy.
"""

from __future__ import annotations

from math import nan
from statistics import median
from typing import Any

from bestof.selection.outside import reraise_from_outside
from bestof.selection.state.tuning import Tuning
from bestof.selection.trials.timer import LateTrial, TimedTrial, Timer, Timing


class LateTimes:
    """The trials of one selector whose times are not known yet, at most one for each problem.

    Once the timer has raised, no alternative is tried any more.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._broken = False
        self._fault: Exception | None = None  # until it was told

    def start(self, args: tuple[Any, ...]) -> Timing | None:
        """Begin to time a trial; return None if that fails, and the trial does not count."""
        try:
            return self._timer.start(args)
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)
            return None

    def stop(self, timing: Timing) -> Timing | None:
        """Note that the call of a trial has returned; return None if the timer fails."""
        try:
            timing.stop()
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)
            return None
        return timing

    def wait(self, trial: TimedTrial, tuning: Tuning, timing: Timing) -> None:
        """Keep this trial until its time is known, unless another thread's trial is waiting."""
        if tuning.out is None:
            tuning.out = LateTrial(trial, timing)

    def harvest(self, tuning: Tuning) -> None:
        """Book the waiting trial of a problem if its time is known. Called with the lock held."""
        found = tuning.out
        if found is None or self._is_paused():
            return
        try:
            seconds = found.timing.seconds()
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)
            seconds = nan
        if seconds is None:
            return
        tuning.out = None
        found.trial.book_late(seconds)

    def best_known(self, tuning: Tuning) -> int | None:
        """Return the alternative with the lowest median so far, or else the first one.

        Return None if the call can be a trial.
        """
        if tuning.out is None and not self._broken and not self._is_paused():
            return None
        known = [
            (median(tuning.candidates[p].samples), p)
            for p in tuning.remaining()
            if tuning.candidates[p].samples
        ]
        return min(known)[1] if known else tuning.remaining()[0]

    def take_fault(self) -> Exception | None:
        """Return the error of the timer, once."""
        fault, self._fault = self._fault, None
        return fault

    def _is_paused(self) -> bool:
        try:
            return self._timer.paused
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)
            return True

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            self._broken, self._fault = True, error
