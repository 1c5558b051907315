"""A timer for devices whose calls return before their work is done."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


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
