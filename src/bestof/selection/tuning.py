"""The state of one problem on its way to a decision."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from bestof.selection.alternative import Alternative, Function
from bestof.selection.policy import Search
from bestof.selection.problem import canonical
from bestof.selection.record import Child, Evidence, Record
from bestof.selection.reopening import Reopening

_SAMPLES_KEPT = 64  # a policy decides on far fewer; a search that cannot end must not grow
# Open at once, of one problem: a program of as many equal layers, forwards first, then backwards, gets each pass
# finished by who began it. Bounded, for forwards of an evaluation never see their backward; one takes 0.2 KiB.
_PASSES_KEPT = 4096
_ORPHANS = 8  # stages of a thread that are taken for those of passes begun before the race was reopened
_HISTORY_KEPT = 16  # reopened races
_CHILDREN_KEPT = 64  # a wrapper may meet other problems inside at every call
# First stages after a decision, until passes of others that are still open are taken for abandoned: fewer, and layers
# whose forward comes after the decision would leave those before it without their backward.
_DRAIN_CALLS = _PASSES_KEPT
_LEAD_CALLS = 64  # first stages of a reopened race that the former answers
_VERIFY_CALLS = 64  # first stages after a decision, until the later stages are taken for those that never come


def problem_text(problem: Hashable) -> str:
    """How a problem is written in records and reports."""
    return canonical(problem) or repr(problem)


class Candidate:
    """What this process knows of one alternative on one problem."""

    __slots__ = (
        "alternative",
        "applies",
        "calls",
        "children",
        "disqualified",
        "known_children",
        "recursive",
        "samples",
        "seconds",
        "stages",
        "trusted",
    )

    def __init__(self, alternative: Alternative, stages: dict[int, Function], *, applies: bool) -> None:
        self.alternative = alternative
        self.stages = stages
        self.applies = applies
        self.samples: list[float] = []  # seconds of the trials that counted, those of earlier runs first
        self.disqualified: str | None = None
        self.children: set[tuple[str, Hashable]] = set()  # choices met inside its trials in this process
        self.known_children: tuple[Child, ...] = ()  # and in earlier ones
        self.trusted: set[int] = set()  # stages whose result was compared with the first alternative's
        self.recursive = False  # it called its selector again with the same problem
        self.calls = 0  # trials in this process since the last decision, whether they counted or not
        self.seconds = 0.0  # what they took

    @property
    def remains(self) -> bool:
        """Whether it may still answer calls."""
        return self.applies and self.disqualified is None

    def adopt(self, children: Iterable[tuple[str, Hashable]]) -> None:
        """Take note of choices met inside it."""
        for child in children:
            if len(self.children) >= _CHILDREN_KEPT:
                return
            self.children.add(child)

    def evidence(self) -> Evidence:
        """All that is known, ready to be kept."""
        met = {Child(selector, problem_text(problem)) for selector, problem in self.children}
        samples, children = tuple(self.samples), _sorted(met.union(self.known_children))
        return Evidence(self.alternative.name, self.alternative.version, samples, self.disqualified, children)


def _sorted(children: Iterable[Child]) -> tuple[Child, ...]:
    return tuple(sorted(children, key=lambda child: (child.selector, child.problem)))


def _adopting(evidence: Evidence, met: set[Child]) -> Evidence:
    more = met.difference(evidence.children)
    if not more or len(evidence.children) >= _CHILDREN_KEPT:
        return evidence
    return replace(evidence, children=_sorted(more.union(evidence.children)))


class Pass:
    """One walk through the stages of a group by one alternative."""

    __slots__ = ("clean", "position", "remaining", "seconds", "thread", "timed")

    def __init__(self, position: int, stages: int, *, timed: bool) -> None:
        self.position = position
        self.timed = timed
        self.remaining = (1 << stages) - 1  # a bit for each stage: a set would take the threefold
        self.seconds = 0.0
        self.clean = True
        self.thread = threading.get_ident()

    def awaits(self, stage: int) -> bool:
        """Whether this stage has not been answered yet."""
        return bool(self.remaining >> stage & 1)


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen alternative for a problem, with the evidence; `position` is its place in the list.

    `history`: the races of this process before the one that it came from, the last sixteen, oldest first.
    """

    problem: Hashable
    alternative: str
    position: int
    source: str
    evidence: tuple[Evidence, ...]
    history: tuple[Reopening, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The median of the chosen alternative; None where it was not measured."""
        return next((one.seconds for one in self.evidence if one.alternative == self.alternative), None)

    @property
    def gain(self) -> float | None:
        """The seconds a call (of a group: a pass) by which the medians differ, that of the first alternative which
        applies less that of the chosen one; None where either was not measured."""
        first, chosen = self.evidence[0].seconds if self.evidence else None, self.seconds
        return None if first is None or chosen is None else first - chosen

    def adopting(self, children: Iterable[tuple[str, Hashable]]) -> Decision:
        """The same decision, with choices that were met inside its alternative since."""
        met = {Child(selector, problem_text(problem)) for selector, problem in children}
        evidence = tuple(_adopting(one, met) if one.alternative == self.alternative else one for one in self.evidence)
        return replace(self, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Teaching:
    """A decision for a copy of its selector: whether its winner calls the selector again with the same problem, and
    which of its stages have not been verified."""

    decision: Decision
    recursive: bool = False
    unverified: frozenset[int] = frozenset()


class Tuning:
    """One problem of one selector until it is settled, and a little longer while passes begun before are finished."""

    __slots__ = (
        "calls",
        "candidates",
        "decision",
        "drained",
        "finishers",
        "former",
        "history",
        "key",
        "lead",
        "lone",
        "passes",
        "problem",
        "search",
        "unsaved",
        "unverified",
    )

    def __init__(self, problem: Hashable, key: str | None, candidates: Sequence[Candidate], search: Search) -> None:
        self.problem = problem
        self.key = key  # canonical text; None where the problem cannot be written down
        self.candidates = candidates
        self.search = search
        self.passes: dict[Pass, None] = {}  # oldest first; a dict, for the oldest and the youngest leave it
        self.decision: Decision | None = None
        self.lone: int | None = None  # the last that remains after disqualifications: nothing is left to search
        self.history: tuple[Reopening, ...] = ()
        self.former: int | None = None  # who was decided before the race was reopened, and has passes to finish
        self.finishers: dict[int, int] = {}  # by thread: stages without a pass of its own, in a reopened race
        self.lead = 0  # first stages that the former still answers, until the passes of the hot path are finished
        self.drained = 0  # first stages since the decision
        self.calls = 0  # of the decided alternative, where every so many are compared
        self.unverified: set[int] = set()  # stages of a stored decision that its winner has not answered here yet
        self.unsaved = False  # whether there is evidence that the store does not have

    def open_pass(self, position: int, stages: int, *, timed: bool) -> Pass:
        """Begin a pass; the oldest one leaves where too many were never finished."""
        if len(self.passes) >= _PASSES_KEPT:
            del self.passes[next(iter(self.passes))]
        begun = Pass(position, stages, timed=timed)
        self.passes[begun] = None
        return begun

    def pass_at(self, stage: int) -> Pass | None:
        """The youngest open pass that has its first stage behind it and lacks this one; one that this thread began
        before one of another thread. Youngest, because backward passes come in reverse order."""
        found = None
        thread = threading.get_ident()
        for begun in reversed(self.passes):
            if begun.awaits(stage) and not begun.awaits(0):
                if begun.thread == thread:
                    return begun
                found = found or begun
        if found is not None and self.former is not None and self._begun_before(found, thread):
            return None
        return found

    def _begun_before(self, found: Pass, thread: int) -> bool:
        """Whether a thread that has begun no open pass, in a race that was reopened, finishes one of the hot path, and
        not `found` of another thread. It does unless it has finished passes of others while the former still led, where
        a mistake does no harm, or so often by now that it must be doing that: as the thread of backward passes."""
        if not found.timed:
            self.finishers[thread] = _ORPHANS
        seen = self.finishers.get(thread, 0)
        if seen >= _ORPHANS:
            return False
        self.finishers[thread] = seen + 1
        return True

    def close_stage(self, begun: Pass, stage: int) -> bool:
        """Take a stage off a pass; whether the pass is finished by it."""
        begun.remaining &= ~(1 << stage)
        if begun.remaining:
            return False
        self.passes.pop(begun, None)
        return True

    def tell(self, position: int, seconds: float) -> None:
        """A sample that counts."""
        samples = self.candidates[position].samples
        if len(samples) < _SAMPLES_KEPT:
            samples.append(seconds)
        self.unsaved = True
        self.search.tell(position, seconds)

    def disqualify(self, position: int, reason: str) -> bool:
        """Take an alternative out of the search for good; false where it is out already, or is the last that remains:
        two threads may each have seen another one fail."""
        if self.remaining() == [position] or not self.candidates[position].remains:
            return False
        self.candidates[position].disqualified = reason
        self.unsaved = True
        self.search.drop(position)
        remaining = self.remaining()
        self.lone = remaining[0] if len(remaining) == 1 else None
        return True

    def continues(self, decision: Decision, reopening: Reopening) -> None:
        """Begin after this decision, with fresh samples: what was disqualified stays out."""
        self.history = (*decision.history, reopening)[-_HISTORY_KEPT:]
        self.former = decision.position
        self.lead = _LEAD_CALLS if len(self.candidates[0].stages) > 1 else 0
        known = {evidence.alternative: evidence for evidence in decision.evidence}
        for position, candidate in enumerate(self.candidates):
            evidence = known.get(candidate.alternative.name)
            if evidence is not None and candidate.applies:
                candidate.known_children = evidence.children
                if evidence.disqualified is not None:
                    self.disqualify(position, evidence.disqualified)
        self.unsaved = False

    def inherit(self, taught: Teaching) -> None:
        """Begin as settled, with the decision of another selector."""
        decision = taught.decision
        self._replay(decision.evidence)
        self.history = decision.history
        self.unverified = set(taught.unverified)
        self.candidates[decision.position].recursive = taught.recursive
        self.decision = decision

    def leads(self) -> bool:
        """Whether the former answers this first stage: nobody knows which passes it had begun on the hot path, and none
        may be finished by an alternative that another thread has begun to try. Counts."""
        if self.lead == 0 or self.former not in self.remaining():
            return False
        self.lead -= 1
        return True

    def orphan(self) -> int:
        """Who answers a stage whose pass was begun by a decision that is gone, or by nobody who is remembered."""
        remaining = self.remaining()
        return self.former if self.former in remaining else remaining[0]

    def replay(self, record: Record) -> None:
        """Take the evidence of an earlier run, where it is of the versions at hand."""
        self._replay(record.evidence)

    def _replay(self, kept: Iterable[Evidence]) -> None:
        known = {evidence.alternative: evidence for evidence in kept}
        for position, candidate in enumerate(self.candidates):
            evidence = known.get(candidate.alternative.name)
            if evidence is None or not candidate.applies or evidence.version != candidate.alternative.version:
                continue
            candidate.known_children = evidence.children
            if evidence.disqualified is not None:
                self.disqualify(position, evidence.disqualified)
            else:
                for seconds in evidence.samples:
                    if 0.0 <= seconds < inf:
                        self.tell(position, seconds)
        self.unsaved = False

    def stored_winner(self, record: Record) -> int | None:
        """The position of a stored decision, None where it no longer stands: its alternative is gone or changed, or
        another has come that was never measured, and was not left out knowingly either."""
        winner = None
        left_out = {(one.alternative, one.version) for one in record.evidence if one.left_out}
        for position, candidate in enumerate(self.candidates):
            if not candidate.remains:
                continue
            if not candidate.samples:
                if (candidate.alternative.name, candidate.alternative.version) in left_out:
                    continue
                return None
            if candidate.alternative.name == record.decision:
                winner = position
        return winner

    def record(self, selector: str, host: str, updated: float) -> Record | None:
        """What to keep of this problem; None where nothing was measured, or the problem cannot be written down."""
        decision = None
        # What was ordered was not measured: the next run goes on with the evidence.
        if self.decision is not None and self.decision.source not in ("forced", "pinned"):
            decision = self.decision.alternative
        found = [c for c in self.candidates if c.samples or c.disqualified is not None]
        if self.key is None or not found:
            return None
        if decision is not None:  # made knowing of those that the search left out: only what comes later is new
            found = [c for c in self.candidates if c in found or c.remains]
        evidence = tuple(candidate.evidence() for candidate in found)
        return Record(selector, self.key, host, decision, evidence, updated)

    def count_drain(self) -> None:
        """A first stage was called after the decision."""
        self.drained += 1

    def answered(self, stage: int) -> None:
        """The decided alternative has answered a call of this stage."""
        if self.drained >= _VERIFY_CALLS:  # a program that never goes on to the later stages
            self.unverified.clear()
        self.unverified.discard(stage)

    def draining(self) -> bool:
        """Whether passes are still open that another alternative than the decided one must finish."""
        decided = self.decision
        if decided is None or self.drained >= _DRAIN_CALLS:
            return False
        return any(begun.position != decided.position for begun in self.passes)

    def remaining(self) -> list[int]:
        """The positions that may still answer calls, in list order."""
        return [position for position, candidate in enumerate(self.candidates) if candidate.remains]
