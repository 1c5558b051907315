"""The state of one problem on its way to a decision."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from bestof.selection.alternative import Alternative, Function
from bestof.selection.circumstances import may_pass
from bestof.selection.earlier_race import EarlierRace
from bestof.selection.open_passes import OpenPasses
from bestof.selection.policy import Search
from bestof.selection.problem import canonical
from bestof.selection.record import Child, Evidence, Record
from bestof.selection.timer import TimedTrial, Timing

SAMPLES_KEPT = 64  # a policy decides on far fewer; a search that cannot end must not grow
_HISTORY_KEPT = 16  # reopened races
_CHILDREN_KEPT = 64  # a wrapper may meet other problems inside at every call
_VERIFY_CALLS = (
    64  # first stages after a decision, until the later stages are taken for those that never come
)


def problem_text(problem: Hashable) -> str:
    """How a problem is written in records and reports."""
    return canonical(problem) or repr(problem)


class LateTrial(NamedTuple):
    """A trial that has ended, and what will tell its time."""

    trial: TimedTrial
    timing: Timing


class Candidate:
    """What this process knows of one alternative on one problem."""

    __slots__ = (
        "alternative",
        "applies",
        "calls",
        "children",
        "circumstances",
        "disqualified",
        "known_children",
        "readmitted",
        "recursive",
        "samples",
        "seconds",
        "stages",
        "trusted",
    )

    def __init__(
        self, alternative: Alternative, stages: dict[int, Function], *, applies: bool
    ) -> None:
        self.alternative = alternative
        self.stages = stages
        self.applies = applies
        self.samples: list[
            float
        ] = []  # seconds of the trials that counted, those of earlier runs first
        self.disqualified: str | None = None
        self.circumstances = ""  # of the disqualification in this process
        self.readmitted: Evidence | None = (
            None  # an earlier process disqualified it: it is tried again
        )
        self.children: set[tuple[str, Hashable]] = (
            set()
        )  # choices met inside its trials in this process
        self.known_children: tuple[Child, ...] = ()  # and in earlier ones
        self.trusted: set[int] = (
            set()
        )  # stages whose result was compared with the first alternative's
        self.recursive = False  # it called its selector again with the same problem
        self.calls = (
            0  # trials in this process since the last decision, whether they counted or not
        )
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
        reason = self.disqualified
        if self.awaits_retry:
            assert self.readmitted is not None
            samples, reason = self.readmitted.samples, self.readmitted.disqualified
        elif reason is not None and self.circumstances:
            reason = f"{reason}, {self.circumstances}"
        return Evidence(self.alternative.name, self.alternative.version, samples, reason, children)

    @property
    def awaits_retry(self) -> bool:
        """Whether an earlier process disqualified it, and this one has not tried it yet."""
        return self.readmitted is not None and self.remains and not self.samples


def _sorted(children: Iterable[Child]) -> tuple[Child, ...]:
    return tuple(sorted(children, key=lambda child: (child.selector, child.problem)))


def _adopting(evidence: Evidence, met: set[Child]) -> Evidence:
    more = met.difference(evidence.children)
    if not more or len(evidence.children) >= _CHILDREN_KEPT:
        return evidence
    return replace(evidence, children=_sorted(more.union(evidence.children)))


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen alternative for a problem, with the evidence; `position` is its place in the list.

    `history`: the races of this process before the one that it came from, the last sixteen, oldest
    first.
    """

    problem: Hashable
    alternative: str
    position: int
    source: str
    evidence: tuple[Evidence, ...]
    history: tuple[EarlierRace, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The median of the chosen alternative; None where it was not measured."""
        return next(
            (one.seconds for one in self.evidence if one.alternative == self.alternative), None
        )

    @property
    def gain(self) -> float | None:
        """The seconds a call (of a group: a pass) by which the medians differ, that of the first
        alternative which applies less that of the chosen one; None where either was not
        measured."""
        first, chosen = self.evidence[0].seconds if self.evidence else None, self.seconds
        return None if first is None or chosen is None else first - chosen

    def adopting(self, children: Iterable[tuple[str, Hashable]]) -> Decision:
        """The same decision, with choices that were met inside its alternative since."""
        met = {Child(selector, problem_text(problem)) for selector, problem in children}
        evidence = tuple(
            _adopting(one, met) if one.alternative == self.alternative else one
            for one in self.evidence
        )
        return replace(self, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Teaching:
    """A decision for a copy of its selector: whether its winner calls the selector again with the
    same problem, and which of its stages have not been verified."""

    decision: Decision
    recursive: bool = False
    unverified: frozenset[int] = frozenset()


class Tuning:
    """The state of one problem of one selector on its way to a decision.

    It begins when the problem is first called, or when its race is reopened. `candidates` are the
    alternatives in list order, with their samples. `search` is the policy's state: it names the
    next alternative, is told every sample that counts, and names the winner. `passes` are the
    passes of a group that are under way.

    It ends when the search has a winner. `decision` is then set, and `Knowledge` drops the tuning.
    It lives on while a stored decision is verified, while results are compared now and then
    (`check_every`), and if the winner calls its selector again with the same problem.
    """

    __slots__ = (
        "asked",
        "asks_ahead",
        "awaits_store",
        "calls",
        "candidates",
        "decided_calls",
        "decision",
        "former",
        "history",
        "key",
        "lone",
        "out",
        "passes",
        "problem",
        "retried",
        "retries",
        "search",
        "unsaved",
        "unverified",
    )

    def __init__(
        self, problem: Hashable, key: str | None, candidates: Sequence[Candidate], search: Search
    ) -> None:
        self.problem = problem
        self.key = key  # canonical text; None where the problem cannot be written down
        self.candidates = candidates
        self.search = search
        # Whom to call next, asked after the last trial while the lock was held, so that this one
        # needs none: 0.15 us.
        self.asked: int | None = None
        self.asks_ahead = bool(getattr(search, "asks_ahead", False))
        self.awaits_store = False  # its evidence did not come in time: the next calls ask again
        self.passes = OpenPasses()
        self.out: LateTrial | None = None  # a trial whose time is not known yet
        self.decision: Decision | None = None
        self.lone: int | None = (
            None  # the last that remains after disqualifications: nothing is left to search
        )
        self.history: tuple[EarlierRace, ...] = ()
        self.former: int | None = None  # who was decided before the race was reopened
        self.decided_calls = 0  # first stages since the decision
        self.calls = 0  # of the decided alternative, where every so many are compared
        self.unverified: set[int] = (
            set()
        )  # stages of a stored decision that its winner has not answered here yet
        self.retries: list[int] = []  # who is tried once beside the calls of a stored decision
        self.retried: set[int] = set()  # who answers such a call, or has answered one
        self.unsaved = False  # whether there is evidence that the store does not have

    def tell(self, position: int, seconds: float) -> None:
        """A sample that counts."""
        self.asked = None
        samples = self.candidates[position].samples
        if len(samples) < SAMPLES_KEPT:
            samples.append(seconds)
        self.unsaved = True
        self.search.tell(position, seconds)

    def disqualify(self, position: int, reason: str) -> bool:
        """Take an alternative out of the search for good; false where it is out already, or is the
        last that remains: two threads may each have seen another one fail."""
        self.asked = None
        if self.remaining() == [position] or not self.candidates[position].remains:
            return False
        self.candidates[position].disqualified = reason
        self.unsaved = True
        self.search.drop(position)
        remaining = self.remaining()
        self.lone = remaining[0] if len(remaining) == 1 else None
        return True

    def failed_before(self, position: int, reason: str) -> bool:
        """Return whether an earlier process disqualified an alternative for the same reason."""
        readmitted = self.candidates[position].readmitted
        return readmitted is not None and (readmitted.disqualified or "").startswith(reason)

    def continues(self, decision: Decision, reopening: EarlierRace) -> None:
        """Begin after this decision, with fresh samples: what was disqualified stays out."""
        self.history = (*decision.history, reopening)[-_HISTORY_KEPT:]
        self.former = decision.position
        known = {evidence.alternative: evidence for evidence in decision.evidence}
        for position, candidate in enumerate(self.candidates):
            evidence = known.get(candidate.alternative.name)
            if evidence is not None and candidate.applies:
                candidate.known_children = evidence.children
                if evidence.disqualified is not None:
                    self.disqualify(position, evidence.disqualified)
        self.unsaved = False

    def plan_retries(self) -> None:
        """Let each alternative that an earlier process disqualified by an error answer one call
        beside the stored decision."""
        self.retries = [p for p, candidate in enumerate(self.candidates) if candidate.awaits_retry]

    def inherit(self, taught: Teaching) -> None:
        """Begin as settled, with the decision of another selector."""
        decision = taught.decision
        # The alternatives are the same; what their objects hold may have changed since.
        self._replay(decision.evidence, any_version=True)
        self.history = decision.history
        self.unverified = set(taught.unverified)
        self.candidates[decision.position].recursive = taught.recursive
        self.decision = decision

    @property
    def answered_by_neighbour(self) -> str | None:
        """The alternative that a similar problem decided for, and that answers while its search
        waits."""
        position = getattr(self.search, "best", None)
        return None if position is None else self.candidates[position].alternative.name

    def verify(self, record: Record, search: Search) -> None:
        """Search anew with fresh samples, because those of the stored decision were noisy.

        What was disqualified by an error is tried again. The record in the store stands until this
        search has decided.
        """
        self.search = search
        self.asks_ahead = bool(getattr(search, "asks_ahead", False))
        for position, candidate in enumerate(self.candidates):
            if not candidate.remains:
                search.drop(position)
            if candidate.alternative.name == record.decision:
                self.former = position
        self._replay(replace(one, samples=()) for one in record.evidence)

    def orphan(self) -> int:
        """Who answers a stage whose pass was begun by nobody who is remembered."""
        remaining = self.remaining()
        return self.former if self.former in remaining else remaining[0]

    def replay(self, record: Record) -> None:
        """Take the evidence of an earlier run. That of another version orders the first round, and
        decides nothing."""
        stale = self._replay(record.evidence)
        prefer = getattr(self.search, "prefer", None)
        if stale and prefer is not None:
            prefer(sorted(range(len(self.candidates)), key=lambda p: stale.get(p, inf)))

    def _replay(self, kept: Iterable[Evidence], *, any_version: bool = False) -> dict[int, float]:
        """Tell the search what is valid; return the medians of other versions, by position."""
        known = {evidence.alternative: evidence for evidence in kept}
        stale: dict[int, float] = {}
        for position, candidate in enumerate(self.candidates):
            evidence = known.get(candidate.alternative.name)
            if evidence is None or not candidate.applies:
                continue
            if not any_version and evidence.version != candidate.alternative.version:
                if evidence.seconds is not None and evidence.disqualified is None:
                    stale[position] = evidence.seconds
                continue
            candidate.known_children = evidence.children
            if (
                evidence.disqualified is not None
                and not any_version
                and may_pass(evidence.disqualified)
            ):
                candidate.readmitted = evidence
            elif evidence.disqualified is not None:
                self.disqualify(position, evidence.disqualified)
            else:
                for seconds in evidence.samples:
                    if 0.0 <= seconds < inf:
                        self.tell(position, seconds)
        self.unsaved = False
        return stale

    def stored_winner(self, record: Record) -> int | None:
        """The position of a stored decision, None where it no longer stands: its alternative is
        gone or changed, or another has come that was never measured, and was not left out knowingly
        either."""
        winner = None
        left_out = {(one.alternative, one.version) for one in record.evidence if one.left_out}
        for position, candidate in enumerate(self.candidates):
            if not candidate.remains:
                continue
            if not candidate.samples:
                key = (candidate.alternative.name, candidate.alternative.version)
                if candidate.awaits_retry or key in left_out:
                    continue
                return None
            if candidate.alternative.name == record.decision:
                winner = position
        return winner

    def record(self, selector: str, host: str, updated: float) -> Record | None:
        """What to keep of this problem; None where nothing was measured, or the problem cannot be
        written down."""
        decision = None
        # What was ordered was not measured: the next run goes on with the evidence.
        if self.decision is not None and self.decision.source not in ("forced", "pinned"):
            decision = self.decision.alternative
        measured = [c for c in self.candidates if c.samples or c.disqualified or c.awaits_retry]
        if self.key is None or not measured:
            return None
        # A decision is made knowing of those that the search left out: for the next run they are
        # nothing new. Not of those that a search which was cut off, as by the end of a window,
        # never came to.
        known = () if decision is None else getattr(self.search, "left_out", ())
        kept = [
            c for p, c in enumerate(self.candidates) if c in measured or (p in known and c.remains)
        ]
        evidence = tuple(candidate.evidence() for candidate in kept)
        return Record(selector, self.key, host, decision, evidence, updated)

    def answered(self, stage: int) -> None:
        """The decided alternative has answered a call of this stage."""
        if self.decided_calls >= _VERIFY_CALLS:  # a program that never goes on to the later stages
            self.unverified.clear()
        self.unverified.discard(stage)

    def remaining(self) -> list[int]:
        """The positions that may still answer calls, in list order."""
        return [position for position, candidate in enumerate(self.candidates) if candidate.remains]
