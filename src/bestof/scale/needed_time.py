"""Estimates the time in which all settings of `bestof scale --serve` can be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from bestof.scale.experiment import PARTS
from bestof.scale.split import Split

_MARGIN = 1.25
"""Starts of several instances, and those of a busy machine, take longer than one alone."""


class NeededTime:
    """What was learnt of starts and calls, and the time that all settings need by it.

    splits: the settings, in their order. measuring: the seconds for which a setting is measured
    whose calls take so many seconds.
    """

    def __init__(self, splits: Sequence[Split], measuring: Callable[[float], float]) -> None:
        self._splits = splits
        self._measuring = measuring
        self._start = 0.0
        self._work = 0.0  # the most seconds of a sample on one thread
        self._has_started = False

    def add_start(self, seconds: float, *, ended: bool) -> None:
        """Note how long the instances of a setting took to start, or did not end to start."""
        self._start = max(self._start, seconds)
        self._has_started |= ended

    def add_call(self, split: Split, seconds: float) -> None:
        """Note how long a call takes."""
        assert split.batch is not None
        self._work = max(self._work, seconds * split.threads / split.batch)

    def advice(self, given: float) -> str:
        """Say what to pass for --seconds; `given` is what was passed."""
        enough = self.seconds()
        if enough <= given:  # one setting took longer than all others let expect
            return "pass a larger --seconds"
        if self._has_started:
            return f"pass --seconds {enough} or more"
        return f"nothing has started in {self._start:.3g} s; pass more than --seconds {enough}"

    def seconds(self) -> int:
        """Return the time in which the share of each setting is as long as it needs."""
        before, most = 0.0, 0.0
        for number, split in enumerate(self._splits):
            assert split.batch is not None
            needed = self._start + self._measuring(self._work * split.batch / split.threads)
            most = max(most, before + min(PARTS, len(self._splits) - number) * needed)
            before += needed
        return ceil(_MARGIN * most)
