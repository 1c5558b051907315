"""The long way of a call: who is to answer, what is learnt from it, and when a problem is settled.

A call -> problem -> settled? -> run it. Otherwise policy.ask -> guard -> clock -> run -> policy.tell -> journal ->
perhaps a decision -> store. There is no second way through.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from bestof.errors import BestofWarning, NoAlternative, StageError
from bestof.selection import registry
from bestof.selection.alternative import Alternative, Function
from bestof.selection.attempt import Attempt
from bestof.selection.duration import duration
from bestof.selection.guard import Check
from bestof.selection.host import host
from bestof.selection.hot_path import HotPath
from bestof.selection.journal import DecisionEntry, DisqualificationEntry, Journal
from bestof.selection.keeper import Keeper
from bestof.selection.opening import Neighbours, neighbour_policy, open_tuning
from bestof.selection.order import Order
from bestof.selection.policies import Fixed, Race
from bestof.selection.policy import Policy
from bestof.selection.store.protocol import Store
from bestof.selection.trial import Trial, current_trial, innermost_trial
from bestof.selection.tuning import Candidate, Decision, Tuning, problem_text

_log = logging.getLogger("bestof")


class Chooser(HotPath):
    """Everything of a selector that is not its face: its state, and what calls of unsettled problems do to it.

    Takes what BestOf takes, validated. Whatever is shared between threads changes with `_lock` held only; alternatives,
    listeners and warnings run without it.
    """

    def __init__(
        self,
        name: str,
        alternatives: tuple[Alternative, ...],
        get_problem_size: Callable[..., Hashable],
        *,
        policy: Policy | None,
        check: Check,
        check_every: int | None,
        neighbours: Neighbours | None,
        restore: Callable[..., Callable[[], object]] | None,
        store: Store | None,
        store_named: bool,
        clock: Callable[[], float],
        max_problems: int,
        journal: Journal,
        forced: Order | None,
    ) -> None:
        self.name = name
        self.get_problem_size = get_problem_size
        self._alternatives = alternatives
        self._names = [alternative.name for alternative in alternatives]
        self._grouped = alternatives[0].is_group
        self._stages: tuple[dict[int, Function], ...] = tuple(
            dict(enumerate(alternative.stages)) for alternative in alternatives
        )
        self._own_policy = policy
        self._check = check
        self._check_every = check_every
        self._neighbours = neighbours
        self._neighbours_failed = False
        self._restore = restore
        self._own_store = store
        self._store_named = store_named
        # Through a weak reference, for a circle would keep a dropped selector until the next collection.
        this = weakref.ref(self)
        self._keeper = Keeper(name, lambda: _store_of(this()))
        self._forced = forced
        self._refused: set[Order] = set()  # orders that could not be obeyed, and were told of
        self._clock = clock
        self._max_problems = max_problems
        self._lock = threading.RLock()
        self._settled = {}
        self._older: dict[Hashable, dict[int, Function]] = {}
        self._decisions: dict[Hashable, Decision] = {}
        self._tunings: dict[Hashable, Tuning] = {}
        self._notices: list[str] = []  # warnings for when the lock is free
        self.journal = journal
        self.trials = 0
        self.trial_seconds = 0.0
        self.loss_seconds = 0.0

    def _long_way(self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(stage, int) or isinstance(stage, bool) or stage not in self._stages[0]:
            stages = len(self._stages[0])
            raise StageError(f"{self._where(problem)}: expected a stage from 0 to {stages - 1}; got {stage!r}")
        if registry.first_only():
            return self._stages[0][stage](*args, **kwargs)
        parent = innermost_trial()
        attempt: Attempt | None = None
        with self._lock:
            # A search under way is looked for first: its trials are the calls that must not pay for anything else.
            function, tuning = None, self._tunings.get(problem)
            if tuning is None:
                function = self._settled_function(problem, stage)
                if function is None:
                    tuning = self._begin(problem)
                    function = self._settled_function(problem, stage)
            if function is None:
                assert tuning is not None
                attempt = self._attempt(tuning, stage, parent)
        if self._notices:
            self._warn()
        if self.journal.undelivered:
            self.journal.deliver()
        if attempt is not None:
            return attempt.run(args, kwargs)
        assert function is not None
        if parent is None:
            return function(*args, **kwargs)
        return self._inside(parent, problem, function, args, kwargs)

    def _inside(
        self, parent: Trial, problem: Hashable, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A settled call inside a trial: its time is part of that trial, choices inside it are not the trial's own."""
        parent.meets(self.name, problem, settled=True)
        trial = Trial(self, problem, -1, parent)
        token = current_trial.set(trial)
        try:
            return function(*args, **kwargs)
        finally:
            current_trial.reset(token)
            trial.done = True
            if not trial.clean:
                parent.clean = False
            if trial.children is not None:
                self._adopt(problem, trial.children)

    def _adopt(self, problem: Hashable, children: set[tuple[str, Hashable]]) -> None:
        """Add choices met inside a settled winner to its evidence, for instance where nothing but it applied."""
        with self._lock:
            decision = self._decisions.get(problem)
            if decision is not None:
                self._decisions[problem] = decision.adopting(children)

    def _warn(self) -> None:
        while self._notices:
            warnings.warn(self._notices.pop(0), BestofWarning, stacklevel=4)

    def _settled_function(self, problem: Hashable, stage: int) -> Function | None:
        winner = self._settled.get(problem)
        if winner is None:
            winner = self._older.pop(problem, None)
            if winner is None:
                return None
            self._remember(problem, winner)
        return winner[stage]

    def _remember(self, problem: Hashable, winner: dict[int, Function]) -> None:
        """Two generations bound the memory without a write on the hot path: what was not used while the younger one
        filled up is forgotten."""
        self._older.pop(problem, None)
        if len(self._settled) >= self._max_problems // 2 and problem not in self._settled:
            for forgotten in self._older:
                self._decisions.pop(forgotten, None)
            self._older, self._settled = self._settled, {}
        self._settled[problem] = winner

    def _begin(self, problem: Hashable) -> Tuning:
        """Meet a problem for the first time in this process: ask who applies, and what earlier runs knew."""
        policy = self._policy()
        if self._neighbours is not None:
            policy = self._neighbour_policy(policy, self._neighbours, problem)
        tuning = open_tuning(problem, self._alternatives, self._stages, policy)
        for candidate in tuning.candidates:
            if candidate.disqualified is not None:
                self._note_disqualified(problem, candidate)
        remaining = tuning.remaining()
        if not remaining:
            raise NoAlternative(f"{self._where(problem)}: no alternative supports it; asked {', '.join(self._names)}")
        order = self._forced or self._keeper.pinned(tuning.key)
        if order is not None and self._obey(order, tuning):
            return tuning
        if len(remaining) == 1:
            self._settle(tuning, remaining[0], "only")
        elif isinstance(policy, Fixed) and tuning.search.winner is not None:
            self._settle(tuning, tuning.search.winner, "forced")
        else:
            self._hold(tuning)
            self._recall(tuning)
        return tuning

    def _obey(self, order: Order, tuning: Tuning) -> bool:
        """Settle for what was ordered, verified by its first calls; false, and a warning, where that cannot be."""
        record = self._keeper.load(tuning.key)
        refusal = order.refusal(tuning.candidates, record)
        if refusal is not None:
            if order not in self._refused:
                self._refused.add(order)
                self._notices.append(f"{self._where(tuning.problem)}: {order.refused(refusal)}")
            return False
        self._hold(tuning)
        if record is not None:
            tuning.replay(record)
        tuning.unverified = set(self._stages[0])
        self._settle(tuning, self._names.index(order.alternative), order.source)
        return True

    def _hold(self, tuning: Tuning) -> None:
        while len(self._tunings) >= self._max_problems:
            oldest = next(iter(self._tunings))
            del self._tunings[oldest]
            self._decisions.pop(oldest, None)
        self._tunings[tuning.problem] = tuning

    def _neighbour_policy(self, policy: Policy, neighbours: Neighbours, problem: Hashable) -> Policy:
        try:
            return neighbour_policy(policy, neighbours, problem, self._decisions)
        except Exception as error:
            if not self._neighbours_failed:
                self._neighbours_failed = True
                self._notices.append(
                    f"{self._where(problem)}: neighbours raised {type(error).__name__}: {error}; searching without"
                )
            return policy

    def _note_disqualified(self, problem: Hashable, candidate: Candidate) -> None:
        name, reason = candidate.alternative.name, candidate.disqualified or ""
        self.journal.add(DisqualificationEntry(problem, name, reason))
        self._notices.append(f"{self._where(problem)}: alternative {name!r} was disqualified: {reason}")

    def _recall(self, tuning: Tuning) -> None:
        record = self._keeper.load(tuning.key)
        if record is not None:
            tuning.replay(record)
        winner = tuning.search.winner
        if winner is None and record is not None:
            winner = tuning.stored_winner(record)
        if winner is None:
            if tuning.lone is not None:
                self._settle(tuning, tuning.lone, "only")
            return
        stored = bool(tuning.candidates[winner].samples)
        if stored:
            tuning.unverified = set(self._stages[0])
        self._settle(tuning, winner, "stored" if stored else "forced")

    def _attempt(self, tuning: Tuning, stage: int, parent: Trial | None) -> Attempt:
        """Which alternative answers this call, and whether its time counts."""
        begun = tuning.pass_at(stage) if stage > 0 else None
        decision = tuning.decision
        timed = (stage == 0 and decision is None) or begun is not None
        if begun is not None:
            position = begun.position
        elif decision is not None:
            position = decision.position
        elif stage > 0:  # a stage whose pass was never begun, or was forgotten
            position = tuning.remaining()[0]
        else:
            position = self._ask(tuning)
        if stage == 0 and tuning.decision is not None:
            timed = False
            tuning.count_drain()
            self._count_settled_call(tuning)
        settled = tuning.decision is not None
        above = parent.positions_above(self, tuning.problem) if parent is not None else ()
        if position in above:
            # The alternative called this selector again with the same problem: another one must answer.
            tuning.candidates[position].recursive = True
            others = [other for other in tuning.remaining() if other not in above]
            if not others:
                raise NoAlternative(
                    f"{self._where(tuning.problem)}: every alternative calls this selector again with the very same "
                    f"problem; one of them must answer by itself"
                )
            position, begun, timed, settled = others[0], None, False, True
        if self._grouped and stage == 0:
            begun = tuning.open_pass(position, len(self._stages[0]))
        return Attempt(self, tuning, stage, position, begun, timed, parent, settled)

    def _ask(self, tuning: Tuning) -> int:
        asked = tuning.search.ask()
        if asked is None:  # a window of steps has ended, or the one alternative that the policy knows was dropped
            asked = tuning.search.winner
            if asked is None:
                asked = tuning.remaining()[0]
            self._settle(tuning, asked, "forced")
        return asked

    def _count_settled_call(self, tuning: Tuning) -> None:
        """Every so often the decided alternative is no longer trusted, so that its next result is compared."""
        assert tuning.decision is not None
        if self._check_every is not None:
            tuning.calls += 1
            if tuning.calls >= self._check_every:
                tuning.calls = 0
                tuning.candidates[tuning.decision.position].trusted.clear()

    def conclude(self, tuning: Tuning) -> None:
        """Take what an attempt brought: perhaps a decision. Called by attempts, with the lock held."""
        if tuning.decision is None:
            winner = tuning.search.winner
            if winner is not None:
                self._settle(tuning, winner, "measured" if tuning.candidates[winner].samples else "only")
            elif tuning.lone is not None:
                self._settle(tuning, tuning.lone, "only")
        else:
            self._publish(tuning)

    def reopen(self, tuning: Tuning) -> None:
        """The decided alternative no longer runs: search among the others. Called with the lock held."""
        tuning.decision = None
        tuning.unverified.clear()
        self._decisions.pop(tuning.problem, None)
        self._settled.pop(tuning.problem, None)
        self._older.pop(tuning.problem, None)
        self._tunings[tuning.problem] = tuning

    def _settle(self, tuning: Tuning, position: int, source: str) -> None:
        winner = tuning.candidates[position]
        evidence = tuple(candidate.evidence() for candidate in tuning.candidates if candidate.applies)
        decision = Decision(tuning.problem, winner.alternative.name, position, source, evidence)
        tuning.decision = decision
        tuning.calls = 0
        self._decisions[tuning.problem] = decision
        self.journal.add(DecisionEntry(tuning.problem, decision.alternative, source))
        best = winner.evidence().seconds
        for candidate in tuning.candidates:
            if best is not None:
                self.loss_seconds += max(0.0, candidate.seconds - candidate.calls * best)
            candidate.seconds, candidate.calls = 0.0, 0
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s: %s (%s)%s", self._where(tuning.problem), decision.alternative, source, _gain(tuning, best))
        if tuning.unsaved:
            self._save(tuning)
        self._publish(tuning)

    def _publish(self, tuning: Tuning) -> None:
        """Let calls of a settled problem take the hot path, as soon as nothing needs them on the long way."""
        assert tuning.decision is not None
        if not tuning.unverified and not tuning.draining() and not self._watches(tuning):
            self._tunings.pop(tuning.problem, None)
            self._remember(tuning.problem, self._stages[tuning.decision.position])

    def _watches(self, tuning: Tuning) -> bool:
        """Whether calls of a settled problem stay on the long way: to be compared every so often, or because the winner
        calls this selector again with the same problem, which would never end on the hot path."""
        assert tuning.decision is not None
        position = tuning.decision.position
        winner = tuning.candidates[position]
        if self._check_every is not None and position != tuning.remaining()[0]:
            return True
        return winner.recursive

    def _save(self, tuning: Tuning) -> None:
        record = tuning.record(self.name, host(), time.time())
        tuning.unsaved = False
        if record is not None:
            self._keeper.save(record)

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled yet, so that the next run goes on where this one ended."""
        with self._lock:
            for tuning in self._tunings.values():
                if tuning.unsaved:
                    self._save(tuning)

    def after_fork(self) -> None:
        """In a child process: decisions stay, trials that other threads had begun in the parent are dropped."""
        self._lock = threading.RLock()
        for tuning in self._tunings.values():
            tuning.passes.clear()

    def _policy(self) -> Policy:
        return self._own_policy or registry.shared_policy() or Race()

    def _store(self) -> Store | None:
        return self._own_store if self._store_named else registry.shared_store()

    def _where(self, problem: Hashable) -> str:
        return f"BestOf({self.name!r}), problem {problem_text(problem)}"


def _store_of(selector: Chooser | None) -> Store | None:
    return None if selector is None else selector._store()


def _gain(tuning: Tuning, best: float | None) -> str:
    """What a decision saves, in words; nothing where the first alternative won, or was not measured."""
    first = tuning.candidates[0].evidence().seconds
    if best is None or first is None or first <= best:
        return ""
    return f", saves {duration(first - best)} a call over {tuning.candidates[0].alternative.name!r}"
