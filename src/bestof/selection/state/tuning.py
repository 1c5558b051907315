"""The state of one problem on its way to a decision, and how a problem is opened."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from bestof.errors import InvalidArgument
from bestof.selection.identity.alternative import Alternative, Function
from bestof.selection.identity.problem import canonical
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.passes import OpenPasses
from bestof.selection.policies import Race
from bestof.selection.policies.policy import Policy, Search
from bestof.selection.state.candidate import SAMPLES_KEPT, Candidate
from bestof.selection.state.decision import Decision
from bestof.selection.state.earlier_race import EarlierRace
from bestof.selection.state.family import SharedSearch
from bestof.selection.store.record import Evidence, Record
from bestof.selection.trials.circumstances import may_pass
from bestof.selection.trials.timer import LateTrial

_HISTORY_KEPT = 16  # reopened races
# After this many first stages since a decision, the later stages are taken to be never called.
_VERIFY_CALLS = 64


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
        "ignored",
        "key",
        "least",
        "left_out",
        "lone",
        "out",
        "passes",
        "problem",
        "retried",
        "retries",
        "search",
        "shared",
        "unsaved",
        "untold",
        "unverified",
    )

    def __init__(
        self, problem: Hashable, key: str | None, candidates: list[Candidate], search: Search
    ) -> None:
        self.problem = problem
        self.key = key  # canonical text; None if the problem cannot be written as text
        self.candidates = candidates
        self.search = search
        # The alternative to call next. It is asked for after the last trial, while the lock is held
        # anyway, so that the next trial does not take the lock. This saves 0.15 us.
        self.asked: int | None = None
        self.asks_ahead = False  # `Knowledge.hold` says whether it may be asked for so early
        self.awaits_store = False  # the evidence did not come in time: the next calls ask again
        self.least = inf  # seconds of the fastest trial of this search
        self.ignored = 0  # trials that the search did not count, as before a window of steps
        self.passes = OpenPasses()
        self.out: LateTrial | None = None  # a trial whose time is not known yet
        self.decision: Decision | None = None
        # The last alternative after disqualifications: nothing is left to search.
        self.lone: int | None = None
        self.left_out: set[int] = set()  # positions that were not tried, as hopeless
        self.history: tuple[EarlierRace, ...] = ()
        self.former: int | None = None  # the winner before the race was reopened
        self.decided_calls = 0  # first stages since the decision
        self.calls = 0  # calls of the decided alternative since its last comparison (check_every)
        # Stages of a stored decision that its winner has not answered in this process yet.
        self.unverified: set[int] = set()
        # Positions that are tried once, each in one call beside the stored decision.
        self.retries: list[int] = []
        self.retried: set[int] = set()  # positions that answer such a call, or have answered one
        # The search, if other selectors may take part in it.
        self.shared: SharedSearch | None = None
        self.unsaved = False  # whether there is evidence that the store does not have
        self.untold = False  # whether there is a decision that the journal does not have

    def ask(self) -> int | None:
        """Return the alternative to call next; None if the search is over."""
        position = self.search.ask()
        while position is not None and not self._may_try(position):
            # It is left out, or an interrupt came into `disqualify`.
            self._drop(position)
            position = self.search.ask()
        return position

    def _may_try(self, position: int) -> bool:
        """Return whether an alternative may be tried, and note that it is left out.

        It is left out if it has no samples yet, and trials of other problems tell that it would be
        far slower than others.
        """
        candidate = self.candidates[position]
        hopeless = candidate.alternative.hopeless
        if hopeless is None or candidate.samples or not candidate.remains:
            return candidate.remains
        try:
            if hopeless(self.problem) and self.remaining() != [position]:
                self.left_out.add(position)
                return False
        except Exception as error:
            reraise_from_outside()
            if self.remaining() != [position]:
                candidate.disqualified = f"hopeless raised {type(error).__name__}: {error}"
        return candidate.remains

    @property
    def winner(self) -> int | None:
        """The winner of the search, or the last alternative that is left."""
        position = self.search.winner
        while position is not None and not self.candidates[position].remains:
            self._drop(position)
            position = self.search.winner
        return self.lone if position is None else position

    @property
    def ignores(self) -> bool:
        """Whether the search does not count times at present, as before a window of steps."""
        return bool(getattr(self.search, "ignores", False))

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of a trial that counts, of this run or of an earlier one."""
        self.asked = None
        samples = self.candidates[position].samples
        if len(samples) < SAMPLES_KEPT and not self.ignores:
            samples.append(seconds)
        self.unsaved = True
        self.search.tell(position, seconds)

    def disqualify(self, position: int, reason: str) -> bool:
        """Take an alternative out of the search for good; return whether this was done.

        It is not done if the alternative is out already, or is the last that can run. Two threads
        may have seen two different alternatives fail. The last one that remains gives way to one
        that was left out as unpromising.
        """
        self.asked = None
        if not self.candidates[position].remains:
            return False
        if self.remaining() == [position] and self.admit_another() is None:
            return False
        self.unsaved = True
        self.candidates[position].disqualified = reason
        self._drop(position)
        return True

    def admit_another(self, besides: Collection[int] = ()) -> int | None:
        """Let the first alternative take part that can run but was left out as unpromising.

        Return its position; None if there is none but those `besides`.
        """
        for position, candidate in enumerate(self.candidates):
            try:
                if candidate.applies or position in besides:
                    continue
                if not candidate.alternative.can_run(self.problem):
                    continue
            except Exception:
                reraise_from_outside()
                continue
            self.candidates[position] = candidate.admitted()
            return position
        return None

    def dismiss(self, refused: Mapping[int, Candidate]) -> None:
        """Leave alternatives out again, by position, that were admitted and failed too."""
        if set(self.remaining()) - refused.keys():
            for position, candidate in refused.items():
                self.candidates[position] = candidate

    def _drop(self, position: int) -> None:
        """Take an alternative that does not remain out of the search."""
        if self.shared is not None:  # others go on with the search, and with this alternative
            self.search = copy.deepcopy(self.search)
            for candidate in self.candidates:
                candidate.samples = list(candidate.samples)
            self.shared = None
        remaining = self.remaining()
        self.lone = remaining[0] if len(remaining) == 1 else None
        self.search.drop(position)

    @property
    def trials_begun(self) -> int:
        """The number of its trials since the last decision."""
        return sum(candidate.calls for candidate in self.candidates)

    def failed_before(self, position: int, reason: str) -> bool:
        """Return whether an earlier process disqualified an alternative for the same reason."""
        readmitted = self.candidates[position].readmitted
        return readmitted is not None and (readmitted.disqualified or "").startswith(reason)

    def continues(self, decision: Decision, reopening: EarlierRace) -> None:
        """Begin a new race after this decision, with fresh samples.

        Disqualified alternatives stay out.
        """
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
        """Try again the alternatives that an earlier process disqualified by an error.

        Each of them answers one call beside the stored decision.
        """
        self.retries = [p for p, candidate in enumerate(self.candidates) if candidate.awaits_retry]

    def inherit(self, decision: Decision, *, recursive: bool, unverified: frozenset[int]) -> None:
        """Begin as settled, with the decision of another selector of the same alternatives."""
        # The alternatives are the same. The objects that they hold may have changed since.
        self._replay(decision.evidence, any_version=True)
        self.history = decision.history
        self.unverified = set(unverified)
        self.candidates[decision.position].recursive = recursive
        self.decision = decision

    @property
    def answered_by_neighbour(self) -> str | None:
        """The winner of a similar problem, which answers while the search waits for more calls."""
        position = getattr(self.search, "best", None)
        return None if position is None else self.candidates[position].alternative.name

    def verify(self, record: Record, search: Search) -> None:
        """Search again with fresh samples, because those of the stored decision were noisy.

        Alternatives that were disqualified by an error are tried again. The record in the store is
        kept until this search has decided.
        """
        self.search = search
        for position, candidate in enumerate(self.candidates):
            if not candidate.remains:
                search.drop(position)
            if candidate.alternative.name == record.decision:
                self.former = position
        self._replay(replace(one, samples=()) for one in record.evidence)

    def orphan(self) -> int:
        """Return the alternative for a stage without an open pass.

        This is the previous winner, or else the first alternative that remains.
        """
        remaining = self.remaining()
        return self.former if self.former in remaining else remaining[0]

    def replay(self, record: Record) -> None:
        """Take the evidence of an earlier run.

        Evidence of other versions only sets the order of the first round.
        """
        stale = self._replay(record.evidence)
        prefer = getattr(self.search, "prefer", None)
        if stale and prefer is not None:
            prefer(sorted(range(len(self.candidates)), key=lambda p: stale.get(p, inf)))

    def begin_as(self, record: Record) -> None:
        """Order the first round by what another host has measured. It decides nothing here."""
        seconds = {
            one.alternative: one.seconds
            for one in record.evidence
            if one.seconds is not None and one.disqualified is None
        }
        names = [candidate.alternative.name for candidate in self.candidates]
        prefer = getattr(self.search, "prefer", None)
        if prefer is not None and record.decision in names:
            order = sorted(names, key=lambda n: (n != record.decision, seconds.get(n, inf)))
            prefer([names.index(name) for name in order])

    def _replay(self, kept: Iterable[Evidence], *, any_version: bool = False) -> dict[int, float]:
        """Tell the search the valid samples; return the medians of other versions by position."""
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
        """Return the position of a stored decision, or None if the decision is no longer valid.

        It is invalid if its alternative is gone or has changed. It is also invalid if there is an
        alternative that was neither measured nor deliberately left out.
        """
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
        """Return the record to store.

        None if nothing was measured, or if the problem cannot be written as text.
        """
        decision = None
        # An ordered alternative did not win a race: the next run continues with the evidence.
        given = ("forced", "pinned", "window")
        if self.decision is not None and self.decision.source not in given:
            decision = self.decision.alternative
        measured = [c for c in self.candidates if c.samples or c.disqualified or c.awaits_retry]
        if self.key is None or not measured:
            return None
        # Record the alternatives that the search left out on purpose, so that the next run does not
        # take them for new ones. A search that was cut off, for instance by the end of a window,
        # also has untried alternatives. These are not recorded.
        known: set[int] = set()
        if decision is not None:
            known = self.left_out.union(getattr(self.search, "left_out", ()))
        kept = [
            c for p, c in enumerate(self.candidates) if c in measured or (p in known and c.remains)
        ]
        evidence = tuple(candidate.evidence() for candidate in kept)
        return Record(selector, self.key, host, decision, evidence, updated)

    def answered(self, stage: int, uncompared: Collection[int]) -> None:
        """Note that the decided alternative has answered a call of this stage.

        Stages that are not called for long need no verification, except the `uncompared` ones.
        """
        if self.decided_calls >= _VERIFY_CALLS:  # the program never calls the later stages
            self.unverified.intersection_update(uncompared)
        self.unverified.discard(stage)

    def remaining(self) -> list[int]:
        """Return the positions that may still answer calls, in list order."""
        return [position for position, candidate in enumerate(self.candidates) if candidate.remains]

    def likely_cost(self, position: int) -> float:
        """Return how many seconds a trial may take beyond the fastest one so far.

        An alternative without a trial is expected to be as fast as its estimate says, within a
        tenth, or else to take twice the time of the fastest one. The best known one answers the
        call in any case.
        """
        candidate = self.candidates[position]
        if candidate.samples:
            return max(0.0, min(candidate.samples) - self.least)
        best = self.best_known()
        if position == best:
            return 0.0
        fastest = self.candidates[best].estimate
        if not fastest or candidate.estimate is None:
            return self.least
        return self.least * max(0.1, candidate.estimate / fastest - 1.0)

    def best_known(self) -> int:
        """Return the alternative with the lowest median so far.

        Without any, it is the one that the search takes for the best, such as the decision of a
        neighbour, or else the first one.
        """
        remaining, candidates = self.remaining(), self.candidates
        known = [(median(candidates[p].samples), p) for p in remaining if candidates[p].samples]
        if known:
            return min(known)[1]
        best = getattr(self.search, "best", None)
        return best if best in remaining else remaining[0]


def new_tuning(
    problem: Hashable,
    alternatives: Sequence[Alternative],
    stages: Sequence[dict[int, Function]],
    policy: Policy,
    refused: Sequence[Candidate],
    wanted: Collection[str | None] = (),
) -> Tuning:
    """Return the state of a new problem.

    Alternatives take part if they apply (see `applies`). The `wanted` ones take part, whatever is
    thought of their speed; so do all that can run, if none is promising. If the `supports` or
    `unpromising` of an alternative raises, it is reported as disqualified. `refused` are the
    candidates of all alternatives for problems to which they do not apply.
    """
    rows = list(zip(alternatives, stages, refused, strict=True))
    candidates = [_candidate(*row, problem, any_speed=row[0].name in wanted) for row in rows]
    if not any(candidate.remains for candidate in candidates):
        candidates = [_candidate(*row, problem, any_speed=True) for row in rows]
    search = start_search(policy, [alternative.name for alternative in alternatives])
    for position, candidate in enumerate(candidates):
        if not candidate.remains:
            search.drop(position)
    prefer = getattr(search, "prefer", None)
    if prefer is not None and any(candidate.estimate is not None for candidate in candidates):
        # Calls before the second trial take the first alternative, whose result needs no check.
        first = next((p for p, candidate in enumerate(candidates) if candidate.remains), 0)
        prefer(sorted(range(len(candidates)), key=lambda p: (p != first, _cost(candidates[p]))))
    return Tuning(problem, canonical(problem), candidates, search)


def _cost(candidate: Candidate) -> float:
    return inf if candidate.estimate is None else candidate.estimate


def applies(alternative: Alternative, problem: Hashable) -> bool:
    """Return whether a search of a problem tries an alternative: it can run, and is promising."""
    return alternative.can_run(problem) and alternative.left_out(problem) is None


def _candidate(
    alternative: Alternative,
    functions: dict[int, Function],
    refused: Candidate,
    problem: Hashable,
    *,
    any_speed: bool,
) -> Candidate:
    reason, asked, estimate = None, "supports", None
    try:
        if not alternative.can_run(problem):
            return refused
        asked = "unpromising"
        if not any_speed and alternative.left_out(problem) is not None:
            return refused
        if alternative.estimate is not None:
            asked = "estimate"
            cost = alternative.estimate(problem)
            estimate = None if cost is None else float(cost)
    except Exception as error:
        reraise_from_outside()
        reason = f"{asked} raised {type(error).__name__}: {error}"
    candidate = Candidate(alternative, functions, applies=True)
    candidate.disqualified = reason
    candidate.estimate = estimate
    return candidate


def start_search(policy: Policy, names: Sequence[str]) -> Search:
    """Return the search of a policy for these names.

    If the policy does not fit them, return the search of the default policy. This happens if the
    policy of the process fixes an alternative that this selector does not have.
    """
    try:
        return policy.start(names)
    except InvalidArgument:
        return Race().start(names)
