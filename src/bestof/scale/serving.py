"""Finds how many instances of how many threads, with which batch, serve a plan best.

The best setting has the most samples a second among those whose latency keeps a bound. The latency
is the time of a call of the plan; its 99th percentile counts, over the calls of all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Protocol

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.experiment import NOT_TRIED, Experiment
from bestof.scale.instances import Turn
from bestof.scale.needed_time import NeededTime
from bestof.scale.split import Split

LEAST_CALLS = 100
"""With fewer calls, the 99th percentile is the slowest call."""

SECONDS = 2.0
"""A setting is measured for so long, or longer until it has made LEAST_CALLS."""

COMPARED_SECONDS = 0.5

_COUNTED = 0.8
"""This part of a turn counts: all instances are called before and after it, too."""


class Serving(Protocol):
    """The instances of a setting; see `Instances`."""

    seconds: float
    memory: int
    base: int

    def turn(self, seconds: float, deadline: float) -> Turn:
        """Let all instances call the plan for some seconds."""

    def close(self) -> None:
        """End all instances."""


@dataclass(slots=True)
class Setting:
    """What was measured of instances (`split.ranks`), their threads, and the batch of a call.

    throughput: samples a second of all instances. p50, p99: seconds of a call. calls: how many
    these rest on. memory: the most bytes of an instance, without shared files. why: the reason if
    there is no throughput.
    """

    split: Split
    throughput: float | None = None
    p50: float | None = None
    p99: float | None = None
    calls: int = 0
    memory: int | None = None
    why: str = ""

    def keeps(self, bound: float | None) -> bool:
        """Return whether it was measured, and its 99th percentile is within the bound."""
        return self.p99 is not None and (bound is None or self.p99 <= bound)


class ServingMeasurement(Experiment):
    """Measures settings.

    make: starts the instances of a split; its second argument is the deadline. bound: of the 99th
    percentile, in seconds; None for none. The others are those of `Experiment`.
    """

    def __init__(
        self,
        make: Callable[[Split, float], Serving],
        available: Callable[[], int | None],
        bound: float | None,
        *,
        deadline: float,
        tell: Callable[[str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(available, deadline=deadline, tell=tell, clock=clock)
        self._make = make
        self._bound = bound
        self._base: int | None = None
        self._given = deadline - clock()
        self._needed = NeededTime([], _measuring)
        self.rows: list[Setting] = []
        self.best: Setting | None = None

    def run(self, splits: Sequence[Split]) -> None:
        """Measure all splits, as far as there is time. ScriptFailed if none can be measured."""
        # One instance comes first: it tells the memory of several. A small batch tells that of a
        # larger one.
        ordered = sorted(splits, key=lambda one: (one.batch or 0, len(one.ranks), -one.threads))
        self.rows = [Setting(one) for one in ordered]
        self._needed = NeededTime(ordered, _measuring)
        for number, row in enumerate(self.rows):
            try:
                self._check(row)
                self._measure(row, len(self.rows) - number)
            except OutOfTime:
                advice = self._needed.advice(self._given)
                row.why = f"not measured: its share of the time was up; {advice}"
            except ScriptFailed as error:
                row.why = str(error)
            self._tell(f"{shown(row.split)}: {row.why or _told(row)}")
            self._choose()
        if all(row.throughput is None for row in self.rows):
            raise ScriptFailed(self.rows[0].why)
        self._compare()

    def nearest(self) -> Setting | None:
        """Return the setting whose 99th percentile is the least."""
        timed = [row for row in self.rows if row.p99 is not None]
        return min(timed, key=lambda row: row.p99 or 0.0, default=None)

    def _choose(self) -> None:
        fitting = [row for row in self.rows if row.keeps(self._bound)]
        self.best = max(fitting, key=lambda row: row.throughput or 0.0, default=None)

    def _check(self, row: Setting) -> None:
        """Refuse what does not fit in memory, and what cannot keep the bound."""
        single = self._single(row.split)
        if single is not None and single is not row:
            if single.memory is None:
                raise ScriptFailed(f"{NOT_TRIED}: one instance of it was not measured")
            self._check_room(len(row.split.ranks) * single.memory)
            if self._bound is not None and single.p50 is not None and single.p50 > self._bound:
                alone = f"{single.p50 * 1e3:.3g} ms a call"
                raise ScriptFailed(f"{NOT_TRIED}: one instance alone already takes {alone}")
            return
        for other in self.rows:
            known, batch = other.split.batch, row.split.batch
            if other.memory and self._base is not None and known and batch and known <= batch:
                # What grows with the batch is at most all that was added after the imports.
                added = (other.memory - self._base) * batch // known
                self._check_room(self._base + added)
                return

    def _single(self, split: Split) -> Setting | None:
        """Return the row of one instance with the same threads and batch."""
        for row in self.rows:
            one = row.split
            if (len(one.ranks), one.threads, one.batch) == (1, split.threads, split.batch):
                return row
        return None

    def _started(self, split: Split, until: float) -> Serving:
        begun = self._clock()
        try:
            serving = self._make(split, until)
        except OutOfTime:
            self._needed.add_start(self._clock() - begun, ended=False)
            raise
        self._needed.add_start(self._clock() - begun, ended=True)
        self._needed.add_call(split, serving.seconds)
        return serving

    def _measure(self, row: Setting, left: int) -> None:
        # The first start may take all the time, and its end tells how long one takes. The share of
        # the first setting begins behind it.
        is_first = self._base is None
        until = self._deadline if is_first else self._share(left)
        serving = self._started(row.split, until)
        if is_first:
            until = self._share(left)
        try:
            self._base = serving.base
            times: list[float] = []
            elapsed = 0.0
            seconds = min(SECONDS, _COUNTED * max(0.0, until - self._clock()))
            calls = 0.0
            while True:
                turn = serving.turn(seconds, until)
                times += turn.times
                calls, elapsed = calls + turn.rate * seconds, elapsed + seconds
                if len(times) >= LEAST_CALLS:
                    break
                seconds = 1.2 * (LEAST_CALLS - len(times)) / turn.rate
                if self._clock() + seconds > until:
                    self._needed.add_call(row.split, len(row.split.ranks) / turn.rate)
                    raise ScriptFailed(
                        f"too few calls for a 99th percentile: {len(times)} in {elapsed:.3g} s, "
                        f"and {LEAST_CALLS} are needed; {self._needed.advice(self._given)}"
                    )
            row.memory = serving.memory
        finally:
            serving.close()
        assert row.split.batch is not None
        row.throughput = row.split.batch * calls / elapsed
        row.p50, row.p99, row.calls = percentile(times, 50), percentile(times, 99), len(times)

    def _compare(self) -> None:
        """Compare the best setting in turn with those that come close, if both fit in memory."""
        self.best = self._fastest(
            [
                (1.0 / row.throughput, row)
                for row in self.rows
                if row.throughput and row.keeps(self._bound)
            ],
            lambda row: self._make(row.split, self._deadline),
            self._seconds,
        )

    def _seconds(self, row: Setting, serving: Serving) -> float:
        """Return the seconds of a sample."""
        self._check_time(self._deadline)
        assert row.split.batch is not None
        return 1.0 / (row.split.batch * serving.turn(COMPARED_SECONDS, self._deadline).rate)


def percentile(times: Sequence[float], percent: int) -> float:
    """Return the time that so many percent of the calls do not exceed."""
    return sorted(times)[ceil(len(times) * percent / 100) - 1]


def _measuring(call: float) -> float:
    """Return for how long a setting is measured whose calls take so many seconds."""
    # A second turn asks for a fifth more calls than are missing.
    return max(SECONDS, 1.2 * LEAST_CALLS * call) / _COUNTED


def shown(split: Split) -> str:
    """Return the split in words."""
    ranks, threads = len(split.ranks), split.threads
    return (
        f"{ranks} instance{'s'[: ranks > 1]} of {threads} thread{'s'[: threads > 1]}, "
        f"batch {split.batch}"
    )


def _told(row: Setting) -> str:
    assert row.throughput is not None
    assert row.p99 is not None
    return f"{row.throughput:,.1f} samples/s, 99 % of the calls within {row.p99 * 1e3:.3g} ms"
