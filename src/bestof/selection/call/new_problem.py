"""Meet a new problem: ask which alternatives apply, and begin the search."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import islice
from typing import Any

from bestof.errors import NoAlternative, ProblemError
from bestof.selection.call.drift_watch import DriftWatch
from bestof.selection.identity.alternative import Alternative
from bestof.selection.identity.problem import canonical, problem_text
from bestof.selection.identity.version import places
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.policies import Neighbour
from bestof.selection.policies.policy import (
    Policy,
    Search,
    always,
    has_short_form,
    searches_at_any_time,
)
from bestof.selection.policies.recorded import UNRECORDED, Recorded, RecordedSearch
from bestof.selection.state import registry
from bestof.selection.state.candidate import Candidate
from bestof.selection.state.decision import Decision
from bestof.selection.state.forced_choice import ForcedChoice
from bestof.selection.state.journal import DisqualificationEntry
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.lock import Lock, current_lock, valid_decision
from bestof.selection.state.lock_writer import LockWriter
from bestof.selection.state.noise import is_noisy
from bestof.selection.state.policy_choice import PolicyChoice
from bestof.selection.state.tuning import Tuning, applies, new_tuning, start_search
from bestof.selection.state.waiting_problems import WaitingProblems
from bestof.selection.store.record import Record

Neighbours = Callable[[Any], Iterable[Hashable]]

# the most neighbours that are read; an endless iterable must not hang the call
_NEIGHBOURS_READ = 64
# An alternative is not tried if it took this many times as long as the decision of the neighbour.
# Between similar sizes, ratios change by less than this factor.
HOPELESS = 3.0


class NewProblems:
    """Opens a problem that is called for the first time in this process.

    It asks which alternatives apply, obeys a forced or pinned choice, and loads the evidence of
    earlier runs. If that leaves no winner, it begins a search: a short race if a similar problem
    has a decision.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        choice: PolicyChoice,
        watch: DriftWatch,
        neighbours: Neighbours | None,
        patience: int,
        forced: ForcedChoice | None,
        max_searches: int | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._choice = choice
        self._watch = watch
        self._neighbours = neighbours
        self._neighbours_failed = False
        self._patience = patience
        self._forced = forced
        self._refused: set[ForcedChoice] = set()  # orders that could not be obeyed
        self._max_searches = max_searches
        self._waiting = None if max_searches is None else WaitingProblems(max_searches)

    def answered_unopened(self, problem: Hashable, stage: int) -> int | None:
        """Return the alternative for a call of a new problem that waits; None if it is to be met.

        It waits while `max_searches` searches are under way, unless it needs none: the user or the
        store may know the answer, or one alternative alone may apply.
        """
        waiting, limit = self._waiting, self._max_searches
        if waiting is None or limit is None or registry.ranks_agree():
            return None
        searches = self._knowledge.searches() if len(self._knowledge.tunings) >= limit else {}
        if len(searches) < limit:
            waiting.forget(problem)
            return None
        position = waiting.position(problem)
        if position is None:
            position = self._first_of_several(problem)
            if position is not None and stage == 0:
                waiting.add(problem, position)
                for writer in LockWriter.active:
                    writer.opened(self._knowledge.name, problem_text(problem))
            return position
        idle = waiting.gives_way(problem, searches) if stage == 0 else None
        if idle is None:
            return position
        self._knowledge.give_up(idle)
        waiting.forget(problem)
        return None

    def _first_of_several(self, problem: Hashable) -> int | None:
        """Return the first alternative that applies; None if the problem needs no search."""
        if self._forced is not None or always(self._choice.current()) is not None:
            return None
        try:
            key = canonical(problem)
        except ProblemError:  # `meet` raises it
            return None
        stored = self._knowledge.stored
        record = stored.load(key)
        if stored.pinned(key) is not None or (record is not None and record.decision is not None):
            return None
        alternatives = list(enumerate(self._knowledge.alternatives))
        first = next((place for place, one in alternatives if _applies(one, problem)), None)
        # From the end: a `supports` may set something aside for its problem, and those in front are
        # the more likely to.
        others = (place for place, one in reversed(alternatives) if _applies(one, problem))
        return None if next(others, first) == first else first

    def meet(self, problem: Hashable) -> Tuning:
        """Open a new problem; raise NoAlternative if no alternative applies."""
        policy, lock = self._choice.current(), current_lock()
        if self._neighbours is not None and lock is None:
            policy = self._neighbour_policy(policy, self._neighbours, problem)
        try:
            if lock is None:
                policy = self._watch.agreed(policy, problem)
                wanted = [always(policy)]
            else:
                policy = self._recorded(policy, problem)
                wanted = [self._knowledge.names[0], *(name for name, _ in policy.wanted)]
            self._knowledge.stored.overdue = False
            order = self._forced or self._knowledge.stored.pinned(canonical(problem))
            tuning = new_tuning(
                problem,
                *(self._knowledge.alternatives, self._knowledge.stages),
                *(policy, self._knowledge.refused),
                wanted=wanted if order is None else [*wanted, order.alternative],
            )
        except ProblemError as error:
            raise ProblemError(f"BestOf({self._knowledge.name!r}): {error}") from None
        for candidate in tuning.candidates:
            if candidate.disqualified is not None:
                self._note_disqualified(problem, candidate)
        remaining = tuning.remaining()
        if not remaining:
            raise NoAlternative(
                f"{self._knowledge.where(problem)}: no alternative supports it; "
                f"asked {', '.join(self._knowledge.names)}"
            )
        if order is not None and self._obey(order, tuning):
            return tuning
        names = self._knowledge.names
        fixed = always(registry.Defaults.policy) if self._choice.follows_process else None
        if order is None and fixed in names and not tuning.candidates[names.index(fixed)].remains:
            registry.refuse_fixed(self._knowledge.where(problem))
        if len(remaining) == 1:
            if any(one.unpromising is not None for one in self._knowledge.alternatives):
                # Its first call goes the long way: if it fails, one that was left out answers. A
                # later stage must not fall to another, and may never be called.
                tuning.unverified = {0}
            self._knowledge.settle(tuning, remaining[0], "only")
        elif lock is not None:
            self._take_recorded(tuning, lock)
        elif always(policy) is not None and tuning.search.winner is not None:
            self._knowledge.settle(tuning, tuning.search.winner, "forced")
        else:
            self._recall(tuning)
            if tuning.decision is None:
                # Last: whatever a call, a thread or an interrupt finds is complete.
                tuning.awaits_store = self._knowledge.stored.overdue
                self._knowledge.hold(tuning)
        return tuning

    def _recorded(self, policy: Policy, problem: Hashable) -> Recorded:
        """Return the policy of a locked run: what is ordered, what is recorded, or the first."""
        wanted = [(ordered, "forced")] if (ordered := always(policy)) is not None else []
        record = self._knowledge.recorded(canonical(problem))
        recorded = None if record is None else valid_decision(record, self._knowledge.alternatives)
        if recorded is not None:
            wanted.append((recorded, "locked"))
        return Recorded(tuple(wanted))

    def _take_recorded(self, tuning: Tuning, lock: Lock) -> None:
        """Settle for the recorded alternative without a trial, a comparison or a later race.

        Its first call goes the long way, where an alternative that raises, or that calls its own
        selector again, gives way to another one.
        """
        known = self._knowledge
        record = known.recorded(tuning.key)
        if record is not None:
            tuning.replay(record)  # for reports
        search = tuning.search
        assert isinstance(search, RecordedSearch)
        winner, source = search.winner, search.source
        assert winner is not None
        if source == UNRECORDED:
            lock.miss(known.name, problem_text(tuning.problem), record)
        tuning.candidates[winner].trusted = set(known.stages[winner])
        tuning.unverified = set(known.stages[winner])
        known.settle(tuning, winner, source)

    def may_begin_anew(self, tuning: Tuning, stage: int) -> bool:
        """Drop a search that began before the store had answered, once the store has answered.

        Return whether it was dropped. A search with an open pass, or with a trial whose time is not
        known yet, is kept until these are over.
        """
        if tuning.decision is not None:
            tuning.awaits_store = False
        if stage > 0 or tuning.decision is not None or tuning.passes or tuning.out is not None:
            return False
        if not self._knowledge.stored.answers(tuning.key):
            return False
        del self._knowledge.tunings[tuning.problem]
        return True

    def _obey(self, order: ForcedChoice, tuning: Tuning) -> bool:
        """Settle for an ordered alternative, verified by its first calls.

        If the order cannot be obeyed, warn once and return false.
        """
        record = self._knowledge.recorded(tuning.key)
        refusal = order.refusal(tuning.candidates, record)
        if refusal is not None:
            if order not in self._refused:
                instead = "searches for the fastest alternative"
                if current_lock() is not None:
                    instead = "takes what the lock records"
                self._refused.add(order)
                self._knowledge.notices.append(
                    f"{self._knowledge.where(tuning.problem)}: {order.refused(refusal, instead)}"
                )
            return False
        if record is not None:
            tuning.replay(record)
        tuning.unverified = set(self._knowledge.stages[0])
        self._knowledge.settle(tuning, self._knowledge.names.index(order.alternative), order.source)
        return True

    def _neighbour_policy(
        self, policy: Policy, neighbours: Neighbours, problem: Hashable
    ) -> Policy:
        try:
            return neighbour_policy(
                policy, neighbours, problem, self._knowledge.decisions, self._patience
            )
        except Exception as error:
            reraise_from_outside()
            if not self._neighbours_failed:
                self._neighbours_failed = True
                self._knowledge.notices.append(
                    f"{self._knowledge.where(problem)}: neighbours raised "
                    f"{type(error).__name__}: {error}; searching without"
                )
            return policy

    def _tell_namesake(self, tuning: Tuning, record: Record) -> None:
        """Warn once if the store's evidence is that of another function of the same name."""
        known = {evidence.alternative: evidence.version for evidence in record.evidence}
        for candidate in tuning.candidates:
            name, mine = candidate.alternative.name, candidate.alternative.version
            other = known.get(name, mine)
            if places(other) == tuple(candidate.alternative.formerly):
                continue  # of an earlier version, with other kernels
            there = (
                registry.namesake(self._knowledge.name, self._knowledge.versions, other)
                if other != mine
                else None
            )
            if there is not None and registry.is_news("namesake", self._knowledge.name):
                self._knowledge.notices.append(
                    f"{self._knowledge.where(tuning.problem)}: the store's times of {name!r} are "
                    f"those of another function, {there}; they only set the order of the first "
                    "trials; give the two selectors different names"
                )

    def _note_disqualified(self, problem: Hashable, candidate: Candidate) -> None:
        name, reason = candidate.alternative.name, candidate.disqualified or ""
        self._knowledge.journal.add(DisqualificationEntry(problem, name, reason))
        self._knowledge.notices.append(
            f"{self._knowledge.where(problem)}: alternative {name!r} was disqualified: {reason}"
        )

    def _recall(self, tuning: Tuning) -> None:
        record = self._knowledge.recorded(tuning.key)
        if record is not None:
            self._tell_namesake(tuning, record)
            search = self._verification(tuning, record)
            if search is not None:
                tuning.verify(record, search)
                return
            tuning.replay(record)
        elif not self._knowledge.stored.overdue:
            other = self._knowledge.stored.elsewhere(tuning.key)
            if other is not None:
                tuning.begin_as(other)
        # A search that is cut off, as after a window, has a winner in any case: the best so far.
        cut_off = getattr(tuning.search, "cut_off", False)
        winner = None if cut_off else tuning.search.winner
        if winner is None and record is not None:
            winner = tuning.stored_winner(record)
        if winner is None and cut_off:
            winner = tuning.search.winner
        if winner is None:
            if tuning.lone is not None:
                self._knowledge.settle(tuning, tuning.lone, "only")
            elif not registry.ranks_agree() and not self._knowledge.stored.overdue:
                self._share(tuning)
            return
        favour = getattr(tuning.search, "favour", None)
        if favour is not None:  # all ranks decide together, and this one offers what it has stored
            favour(winner)
            return
        stored = bool(tuning.candidates[winner].samples)
        if stored:
            tuning.unverified = set(self._knowledge.stages[0])
        if stored and self._may_retry():
            tuning.plan_retries()
        source = getattr(tuning.search, "source", None) or "forced"
        self._knowledge.settle(tuning, winner, "stored" if stored else source)

    def _share(self, tuning: Tuning) -> None:
        """Begin with the decision, or the search, of other selectors of the same functions."""
        decision = self._knowledge.family.decision(tuning.problem)
        if decision is None or not all(one.remains for one in tuning.candidates):
            self._knowledge.share(tuning)
        else:
            unverified = frozenset(self._knowledge.stages[0])
            tuning.inherit(decision, recursive=False, unverified=unverified)
            self._knowledge.publish(tuning)

    def _may_retry(self) -> bool:
        """Return whether this process may retry alternatives that an earlier one disqualified."""
        return not registry.ranks_agree() and searches_at_any_time(self._choice.current())

    def _verification(self, tuning: Tuning, record: Record) -> Search | None:
        """Return a search that verifies a stored decision with noisy samples, or None."""
        policy = self._choice.current()
        if not is_noisy(record.evidence, record.decision) or not searches_at_any_time(policy):
            return None
        known = {one.alternative: one.version for one in record.evidence}
        for candidate in tuning.candidates:
            name = candidate.alternative.name
            if candidate.remains and name == record.decision:
                if known.get(name) != candidate.alternative.version:
                    return None
                verified = self._watch.agreed(Neighbour(name, policy), tuning.problem)
                return start_search(verified, self._knowledge.names)
        return None


def _applies(alternative: Alternative, problem: Hashable) -> bool:
    """Return whether an alternative applies. An error is reported once the problem is searched."""
    try:
        return applies(alternative, problem)
    except Exception:
        return False


def neighbour_policy(
    policy: Policy,
    neighbours: Neighbours,
    problem: Hashable,
    decisions: Mapping[Hashable, Decision],
    patience: int,
) -> Policy:
    """Return a short race that begins with the decision of the first settled neighbour.

    The decision answers `patience` calls first. Alternatives that were hopeless at the neighbour
    are left out. Return `policy` itself if no neighbour is settled, or if `policy` has no short
    form. Raises what `neighbours` raises.
    """
    usual = policy
    if not has_short_form(policy):
        return usual
    for other in islice(neighbours(problem), _NEIGHBOURS_READ):
        decision = decisions.get(other)
        if decision is not None:
            short = policy.shortened()
            return Neighbour(decision.alternative, short, _hopeless(decision), patience)
    return usual


def _hopeless(decision: Decision) -> frozenset[str]:
    """Return the alternatives that took more than HOPELESS times as long as the winner."""
    seconds = {
        one.alternative: one.seconds for one in decision.evidence if one.disqualified is None
    }
    best = seconds.get(decision.alternative)
    if best is None:
        return frozenset()
    return frozenset(
        name for name, took in seconds.items() if took is not None and took > HOPELESS * best
    )
