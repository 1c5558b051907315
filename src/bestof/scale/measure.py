"""Runs each split of the script, and compares the fastest ones in turn.

A rank of each split runs alone first, at the batch that it will have. This shows its memory, before
all ranks run, and the base of the weak scaling efficiency.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any, Protocol

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.experiment import NOT_TRIED, Experiment
from bestof.scale.split import Split

TURNS = 3
"""The median of so many turns is the time of a split."""


def shown(seconds: float) -> str:
    """Return seconds with three digits, as 0.000357, 0.0400, 12.3 or 1234."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:#.3g}".rstrip(".")


class _AlwaysFails(ScriptFailed):
    """The script fails whatever the split is."""


class Run(Protocol):
    """A run of the script; see `Contestant`."""

    report: dict[str, Any]

    def turn(self, deadline: float) -> float:
        """Run for a turn. Return the seconds of a step."""

    def close(self) -> None:
        """End the run."""


@dataclass(slots=True)
class Row:
    """What was measured of a split.

    seconds: of a step. alone: of a step of one rank alone, at the same batch of a rank. memory: the
    most bytes of a rank, without shared files. why: the reason if there is no time.
    """

    split: Split
    seconds: float | None = None
    alone: float | None = None
    memory: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Alone:
    seconds: float
    memory: int
    base: int


class Measurement(Experiment):
    """Measures splits. make: starts a run. The others are those of `Experiment`."""

    def __init__(
        self,
        make: Callable[[Split], Run],
        available: Callable[[], int | None],
        *,
        deadline: float,
        tell: Callable[[str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(available, deadline=deadline, tell=tell, clock=clock)
        self._make = make
        self._alone: dict[tuple[int, int | None], _Alone | str] = {}
        self._failures: list[str] = []  # of several ranks
        self._has_run_together = False
        self.rows: list[Row] = []
        self.best: Row | None = None

    def run(self, splits: Sequence[Split]) -> None:
        """Measure all splits, as far as there is time.

        Raises ScriptFailed if none can run, or if the first two runs of one rank fail alike.
        """
        # The smallest batch of a rank comes first: it bounds the memory of the larger ones.
        ordered = sorted(splits, key=lambda one: (one.batch or 0, len(one.ranks), -one.threads))
        self.rows = [Row(one) for one in ordered]
        for number, row in enumerate(self.rows):
            self._measure(row, self._share(len(self.rows) - number))
            self._choose()
        if self.best is None:
            raise ScriptFailed(next((row.why for row in self.rows if row.why), "there is no split"))
        self._compare()

    def _choose(self) -> None:
        timed = [row for row in self.rows if row.seconds is not None]
        self.best = min(timed, key=lambda row: row.seconds or 0.0, default=None)

    def _measure(self, row: Row, until: float) -> None:
        split = row.split
        try:
            alone = self._rank(split, until)
            row.memory, row.alone = alone.memory, alone.seconds
            if len(split.ranks) == 1:
                row.seconds = alone.seconds
            else:
                self._check_room(len(split.ranks) * alone.memory)
                row.seconds = self._together(split, until)
        except OutOfTime:
            row.why = "not measured: its share of the time was up; pass a larger --seconds"
        except _AlwaysFails:
            raise
        except ScriptFailed as error:
            row.why = str(error)
        told = row.why if row.seconds is None else f"{shown(row.seconds)} s a step"
        self._tell(f"{split.name}: {told}")

    def _rank(self, split: Split, until: float) -> _Alone:
        """Return what one rank of the split takes alone."""
        key = split.threads, split.batch
        if key not in self._alone:
            try:
                self._expect(split.batch)
                seconds, report = self._times(Split(split.ranks[:1], split.batch), until)
                self._alone[key] = _Alone(seconds, report["memory"], report["base"])
            except ScriptFailed as error:
                self._alone[key] = str(error)
                self._give_up()
        found = self._alone[key]
        if isinstance(found, str):
            raise ScriptFailed(found)
        return found

    def _give_up(self) -> None:
        """Raise _AlwaysFails if the script itself fails: in two runs, alike, and none succeeded."""
        failed = list(self._alone.values())
        texts = [one for one in failed if isinstance(one, str) and not one.startswith(NOT_TRIED)]
        if len(texts) == len(failed) == 2 and _are_alike(texts):
            raise _AlwaysFails(texts[0])

    def _together(self, split: Split, until: float) -> float:
        """Return the seconds of a step of several ranks.

        If the first two of such splits fail alike, the others are not started.
        """
        if not self._has_run_together and len(self._failures) > 1 and _are_alike(self._failures):
            raise ScriptFailed(
                f"{NOT_TRIED}: other splits of several ranks failed alike: {self._failures[0]}"
            )
        try:
            seconds = self._times(split, until)[0]
        except ScriptFailed as error:
            self._failures.append(str(error))
            raise
        self._has_run_together = True
        return seconds

    def _expect(self, batch: int | None) -> None:
        """Refuse a batch whose memory, as that of a smaller one tells, does not fit."""
        if batch is None:
            return
        for (_, known), one in self._alone.items():
            # What grows with the batch is at most all that was added after the imports.
            if known is not None and isinstance(one, _Alone) and known <= batch:
                self._check_room(one.base + (one.memory - one.base) * batch // known)

    def _times(self, split: Split, until: float) -> tuple[float, dict[str, Any]]:
        run = self._make(split)
        times = []
        silent = len(split.ranks) > 1
        try:
            for _ in range(TURNS):
                times.append(self._turn(run, split, until))
                silent = silent and run.report["exchanges"] == 0  # None: not known
            if silent:
                raise ScriptFailed(
                    f"its {len(split.ranks)} ranks exchange nothing in their steps: no operation "
                    "of torch.distributed was called; wrap the model in DistributedDataParallel"
                )
            return median(times), run.report
        finally:
            run.close()

    def _turn(self, run: Run, split: Split, until: float) -> float:
        self._check_time(until)
        seconds = run.turn(until)
        if run.report["world"] != len(split.ranks):
            raise ScriptFailed(
                f"the script does not use its {len(split.ranks)} ranks together: after a step, "
                f"torch.distributed has {run.report['world']}; call init_process_group and wrap "
                "the model in DistributedDataParallel"
            )
        return seconds

    def _compare(self) -> None:
        """Compare the fastest split in turn with those that come close, if both fit in memory."""
        timed = [(row.seconds, row) for row in self.rows if row.seconds is not None]

        def turn(row: Row, run: Run) -> float:
            return self._turn(run, row.split, self._deadline)

        self.best = self._fastest(timed, lambda row: self._make(row.split), turn)


def _are_alike(failures: Sequence[str]) -> bool:
    """Return whether all failures are the same. Numbers, as those of a batch, may differ."""
    return len({re.sub(r"\d+", "", one) for one in failures}) == 1
