"""Tries environment variables on the script's own step, in turn with the environment before."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.environment import Candidate
from bestof.scale.experiment import Experiment
from bestof.scale.measure import Run
from bestof.selection.policies.paired import judge, speedup

Variables = Mapping[str, str]


@dataclass(slots=True)
class Outcome:
    """What became of a candidate. ratios: seconds of a step before / with it. why: if not tried."""

    candidate: Candidate
    ratios: list[float] = field(default_factory=list)
    kept: bool = False
    why: str = ""

    def line(self) -> str:
        """Return the outcome in one line."""
        variables = words(self.candidate.variables)
        name = f"{self.candidate.name} ({variables})" if variables else self.candidate.name
        if self.why:
            return f"{name}: {self.why}"
        told = "faster" if self.kept else "not confirmed faster"
        return f"{name}: {told}; speed-up {speedup(self.ratios)}"

    def record(self) -> dict[str, Any]:
        """Return the outcome as JSON takes it."""
        return {
            "name": self.candidate.name,
            "variables": dict(self.candidate.variables),
            "kept": self.kept,
            "ratios": self.ratios,
            "why": self.why,
        }


class EnvironmentSearch(Experiment):
    """Tries candidates one after the other, each on top of those that were confirmed.

    make: starts a run with these variables. needed: bytes of a run. The others are those of
    `Experiment`.
    """

    def __init__(
        self,
        make: Callable[[Variables], Run],
        needed: int,
        available: Callable[[], int | None],
        *,
        deadline: float,
        tell: Callable[[str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(available, deadline=deadline, tell=tell, clock=clock)
        self._make = make
        self._needed = needed
        self.outcomes: list[Outcome] = []
        self.kept: dict[str, str] = {}

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Try all candidates, as far as there is time."""
        for number, candidate in enumerate(candidates):
            outcome = Outcome(candidate)
            if candidate.why:
                outcome.why = f"not tried: {candidate.why}"
            else:
                self._try(outcome, self._share(len(candidates) - number))
            self.outcomes.append(outcome)  # not before: an interrupted one has no result
            self._tell(outcome.line())

    def _try(self, outcome: Outcome, until: float) -> None:
        variables = outcome.candidate.variables
        conflict = sorted(self.kept.keys() & variables.keys())
        # glibc's huge pages are those of its own allocator.
        if "GLIBC_TUNABLES" in variables and "LD_PRELOAD" in self.kept:
            conflict = ["LD_PRELOAD"]
        if conflict:
            outcome.why = f"not tried: {conflict[0]}={self.kept[conflict[0]]} was faster"
            return
        tried: tuple[Variables, Variables] = self.kept, {**self.kept, **variables}
        try:
            outcome.ratios = self._in_turn(
                tried, 2 * self._needed, self._make, lambda _, run: self._turn(run, until)
            )
            outcome.kept = bool(judge(outcome.ratios))
        except OutOfTime:
            outcome.why = "not decided: its share of the time was up; pass a larger --seconds"
        except ScriptFailed as error:
            outcome.why = str(error)
        if outcome.kept:
            self.kept.update(variables)

    def _turn(self, run: Run, until: float) -> float:
        self._check_time(until)
        return run.turn(until)


def words(variables: Variables) -> str:
    """Return the variables as a shell takes them in front of a command."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
