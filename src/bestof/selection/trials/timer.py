"""A timer for devices whose calls return before their work is done, and the trials that it times.

bestof never waits for a time. While the time of a trial is unknown, and while the timer is paused,
the best known alternative answers the calls of the problem. The first call after the time is known
hands it to the policy.
"""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple, Protocol

from bestof.selection.interrupts import reraise_from_outside


class Timing(Protocol):
    """One call that is timed."""

    def stop(self) -> None:
        """Note that the call has returned."""

    def seconds(self) -> float | None:
        """Return the time of the call, or None until it is known, without waiting.

        NaN means that the time will never be known.
        """


class Timer(Protocol):
    """Times calls on a device."""

    @property
    def paused(self) -> bool:
        """Whether the running thread may not use the timer at present. Then nothing is tried."""

    def start(self, args: tuple[Any, ...]) -> Timing:
        """Begin to time a call with these arguments."""


class TimedTrial(Protocol):
    """A trial whose time is known later."""

    def book_late(self, seconds: float) -> None:
        """Take the time of the call, or NaN if it will never be known.

        Called with the selector's lock held.
        """


class LateTrial(NamedTuple):
    """A trial that has ended, and the timing that will give its time."""

    trial: TimedTrial
    timing: Timing


class Timed(Protocol):
    """The state of a problem, as far as late times need it."""

    out: LateTrial | None


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

    def wait(self, trial: TimedTrial, tuning: Timed, timing: Timing) -> None:
        """Keep this trial until its time is known, unless another thread's trial is waiting."""
        if tuning.out is None:
            tuning.out = LateTrial(trial, timing)

    def harvest(self, tuning: Timed) -> None:
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

    def blocks(self, tuning: Timed) -> bool:
        """Return whether a call cannot be a trial, because one is out or the timer cannot time."""
        return tuning.out is not None or self._broken or self._is_paused()

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
