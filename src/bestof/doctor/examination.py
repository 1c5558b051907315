"""Lets a program run with and without the cures of traps, in turn, and collects the findings."""

from __future__ import annotations

import resource
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import monotonic

import torch

from bestof.doctor.compilations import compilations
from bestof.doctor.finding import Finding
from bestof.doctor.gain import Gain
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap
from bestof.errors import BestofError
from bestof.profile.recording.recorder import Recorder
from bestof.profile.suspect import suspects_of

TURN_SECONDS = 0.3
PAIRS = 3


class Examination:
    """The examination of one program, between its steps.

    `pause` is called by `StepClock` at the end of a turn, with the seconds of a step, and returns
    how long the next turn shall last. After the last turn, `done` is called with the findings; it
    need not return. deadline: in seconds of `monotonic`. steps: returns how many steps the program
    has made so far. early: called with the findings so far before a slow trap is looked at, which
    stands in them as not found out.
    """

    def __init__(
        self,
        traps: Sequence[Trap],
        seen: Seen,
        done: Callable[[list[Finding]], object],
        *,
        deadline: float,
        steps: Callable[[], int],
        early: Callable[[list[Finding]], object] = lambda _: None,
    ) -> None:
        self._traps, self._seen, self._done, self._early = traps, seen, done, early
        self._deadline, self._steps = deadline, steps
        self._untried = {trap.name for trap in traps if type(trap).treatment is not Trap.treatment}
        self._before: float | None = None  # a step without a cure, in the turn that has just ended
        self._turns = self._run()
        next(self._turns)

    def pause(self, seconds: float | None) -> float:
        """End a turn whose steps took so long each; None before the first one."""
        try:
            self._turns.send(seconds)
        except StopIteration:
            self._done(self.findings())
        return TURN_SECONDS

    def findings(self) -> list[Finding]:
        """Return what is known so far."""
        if not self._seen.steps:  # none was observed
            self._seen.threads = torch.get_num_threads()
        found: list[Finding] = []
        for trap in self._traps:
            if trap.is_slow:
                self._early([*found, Finding(trap.name, None, None, "it was not found out")])
            try:
                found += map(self._with_time, trap.findings(self._seen))
            except Exception as error:  # one trap must not hide the others
                found.append(Finding(trap.name, None, None, f"{type(error).__name__}: {error}"))
        return found

    def _with_time(self, finding: Finding) -> Finding:
        if finding.caught or finding.trap not in self._untried:
            return finding
        told = f"{finding.seen}; there were too few steps to try a cure"
        return replace(finding, caught=None, seen=told)

    def _run(self) -> Generator[None, float | None, None]:
        yield  # the first step has ended; nothing is timed yet
        yield from self._observe()
        for trap in self._traps:
            yield from self._treat(trap)
        if self._left() > 0:
            self._seen.compilations = compilations()
            yield from self._record()

    def _observe(self) -> Generator[None, float | None, None]:
        """Let the program run for a turn as it is."""
        seen = self._seen
        seen.threads = torch.get_num_threads()  # the program may have set it since the import
        waited, faults, began, steps = seen.waited, _faults(), monotonic(), self._steps()
        self._before = yield
        seen.waits = seen.waited - waited
        seen.faults = _faults() - faults
        seen.seconds = monotonic() - began
        seen.steps = self._steps() - steps

    def _treat(self, trap: Trap) -> Generator[None, float | None, None]:
        treatment = trap.treatment(self._seen)
        if treatment is None:
            self._untried.discard(trap.name)
            return
        pairs: list[tuple[float, float]] = []
        for _ in range(PAIRS):
            began = monotonic()
            if self._left() <= 0:
                break
            without, self._before = self._before, None
            if without is None:
                without = yield
            treatment.apply()
            try:
                treated = yield
            finally:
                treatment.undo()
            assert without is not None
            assert treated is not None
            pairs.append((without, treated))
            if monotonic() - began > self._left():  # no time for one more pair
                break
        if pairs:
            gain = self._seen.gains[trap.name] = Gain(pairs)
            self._untried.discard(trap.name)
            if trap.keeps and gain.is_real:
                treatment.apply()

    def _record(self) -> Generator[None, float | None, None]:
        recorder = Recorder("doctor", False)
        try:
            recorder.start()
            yield
            recorder.stop()
            if recorder.profile is not None:
                self._seen.suspects = suspects_of(recorder.profile)
        except BestofError:
            return  # the trap says that there is no profile

    def _left(self) -> float:
        return self._deadline - monotonic()


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
