"""The long way of a call: who is to answer, and what a problem that is met for the first time begins with.

A call -> problem -> settled? -> run it. Otherwise policy.ask -> guard -> clock -> run -> policy.tell -> journal ->
perhaps a decision -> store. There is no second way through.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

from bestof.errors import NoAlternative, ProblemError
from bestof.selection import registry
from bestof.selection.alternative import Alternative, Function
from bestof.selection.attempt import Attempt
from bestof.selection.drift_watch import DriftWatch
from bestof.selection.forced_choice import ForcedChoice
from bestof.selection.group_pass import Pass
from bestof.selection.guard import Check
from bestof.selection.hot_path import Winner
from bestof.selection.journal import DisqualificationEntry, Journal
from bestof.selection.late_times import LateTimes
from bestof.selection.new_problem import Neighbours, neighbour_policy, open_tuning, start_search
from bestof.selection.noise import is_noisy
from bestof.selection.plain_trial import try_plainly
from bestof.selection.policies import Fixed, Neighbour, Window
from bestof.selection.policy import Policy, Search, SearchingPolicy
from bestof.selection.record import Record
from bestof.selection.store.protocol import Store
from bestof.selection.timer import Timer
from bestof.selection.trial import Trial, current_trial, innermost_trial
from bestof.selection.tuning import Candidate, Teaching, Tuning
from bestof.selection.winner import PythonWinner


class Chooser(DriftWatch):
    """Everything of a selector that is not its face: what calls of unsettled problems do to what it knows.

    Takes what BestOf takes, validated. Alternatives, listeners and warnings run without the lock.
    """

    def __init__(
        self,
        name: str,
        alternatives: tuple[Alternative, ...],
        get_problem_size: Callable[..., Hashable],
        *,
        policy: Policy | None,
        drift: bool,
        check: Check,
        check_every: int | None,
        neighbours: Neighbours | None,
        patience: int,
        restore: Callable[..., Callable[[], object]] | None,
        store: Store | None,
        store_named: bool,
        clock: Callable[[], float],
        max_problems: int,
        journal: Journal,
        forced: ForcedChoice | None,
        timer: Timer | None,
    ) -> None:
        super().__init__(
            name,
            alternatives,
            policy=policy,
            drift=drift,
            clock=clock,
            store=store,
            store_named=store_named,
            check_every=check_every,
            max_problems=max_problems,
            journal=journal,
        )
        self.get_problem_size = get_problem_size
        self._check = check
        self._neighbours = neighbours
        self._neighbours_failed = False
        self._patience = patience
        self._restore = restore
        self._plain = check is None and restore is None and timer is None
        self._forced = forced
        self._late = None if timer is None else LateTimes(timer)
        self._refused: set[ForcedChoice] = (
            set()
        )  # orders that could not be obeyed, and were told of

    def _long_way(
        self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if registry.Defaults.first_only:
            return self._stages[0][stage](*args, **kwargs)
        parent = current_trial.get()
        if parent is not None and parent.done:
            parent = innermost_trial()
        tuning = self._tunings.get(problem)
        if tuning is not None:
            position = tuning.asked
            if position is not None and (
                parent is None
                or (parent.parent is None and parent.owner is not self)
                or not parent.has_above(self)
            ):
                return try_plainly(self, tuning, 0, position, None, parent, args, kwargs)
        attempt: Attempt | None = None
        function: Function | None = None
        position = None  # where a plain trial is all that there is to do
        begun: Pass | None = None  # the pass that it belongs to
        with (
            self._lock
        ):  # not acquire and try: an interrupt between the two would leave it held for good
            # A search under way is looked for first: its trials are the calls that must not pay for anything else.
            winner, tuning = None, self._tunings.get(problem)
            if tuning is not None and tuning.awaits_store and self._may_begin_anew(tuning, stage):
                tuning = None
            if tuning is None:
                winner = self._winner(problem)
                if winner is None:
                    tuning = self._begin(problem)
                    winner = self._winner(problem)
            elif (
                self._plain
                and tuning.decision is None
                and (parent is None or not parent.has_above(self))
            ):
                if stage == 0:
                    position = tuning.search.ask()
                    if self._grouped and position is not None:
                        begun = tuning.passes.begin(position, self._stage_count, timed=True)
                else:
                    begun = tuning.passes.take(stage)
                    position = tuning.orphan() if begun is None else begun.position
            if winner is not None:
                function = self._stage_of(winner, stage) if self._grouped else winner.functions[0]
            elif position is None and tuning is not None:
                if self._late is not None:
                    self._late.harvest(tuning)
                attempt = self._attempt(tuning, stage, parent)
                fault = None if self._late is None else self._late.take_fault()
                if fault is not None:
                    self._notices.append(
                        f"{self._where(problem)}: its timer raised {type(fault).__name__}: {fault}; nothing is tried "
                        f"any more, and what is not settled goes to the best alternative known"
                    )
        if position is not None and tuning is not None:
            return try_plainly(self, tuning, stage, position, begun, parent, args, kwargs)
        if self._notices:
            self._warn()
        if self.journal.undelivered:
            self.journal.deliver()
        if attempt is not None:
            return attempt.run(args, kwargs)
        assert function is not None
        try:
            if parent is None:
                return function(*args, **kwargs)
            return self._inside(parent, problem, function, args, kwargs)
        except BaseException:
            if self._grouped and stage == 0 and winner is not None:
                winner.withdraw()  # a first stage that raises begins no pass
            raise

    def _stage_of(self, winner: PythonWinner, stage: int) -> Function:
        """Who answers a stage of a settled group: the winner, unless it belongs to a pass from before."""
        if stage == 0:
            if not winner.begin():
                assert winner.earlier is not None
                winner.earlier.forget_own()
                winner.pass_over_earlier()
                winner.begin()
            begun = None
        elif winner.answers(stage):
            return winner.functions[stage]
        else:
            assert winner.earlier is not None
            begun = winner.earlier.take_own(stage)
            if begun is None and not winner.take_anyones(stage):
                begun = winner.earlier.take_anyones(stage)
            if not winner.earlier.has_own():
                winner.pass_over_earlier()
        if not winner.earlier:
            winner.earlier = None
        return winner.functions[stage] if begun is None else self._functions[begun.position][stage]

    def _inside(
        self,
        parent: Trial,
        problem: Hashable,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
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

    def teachings(self) -> list[Teaching]:
        """Every decision, for a selector of the same alternatives."""
        with self._lock:
            taught = []
            for problem, decision in self._decisions.items():
                tuning = self._tunings.get(problem)
                if tuning is None:
                    taught.append(Teaching(decision))
                else:
                    recursive = tuning.candidates[decision.position].recursive
                    taught.append(Teaching(decision, recursive, frozenset(tuning.unverified)))
            return taught

    def learn(self, teachings: Iterable[Teaching]) -> None:
        """Take over decisions that a selector of the same alternatives has made."""
        with self._lock:
            for taught in teachings:
                decision = taught.decision
                if self._check_every is not None or taught.recursive or taught.unverified:
                    tuning = open_tuning(
                        decision.problem, self._alternatives, self._stages, self._policy()
                    )
                    if not tuning.candidates[decision.position].remains:
                        continue
                    tuning.inherit(taught)
                    self._hold(tuning)
                    self._decisions[decision.problem] = decision
                    self._publish(tuning)
                else:
                    self._decisions[decision.problem] = decision
                    winner = Winner(
                        self._functions[decision.position], self._first_sample(decision)
                    )
                    self._remember(decision.problem, winner)

    def _begin(self, problem: Hashable) -> Tuning:
        """Meet a problem for the first time in this process: ask who applies, and what earlier runs knew."""
        policy = self._policy()
        if self._neighbours is not None:
            policy = self._neighbour_policy(policy, self._neighbours, problem)
        try:
            policy = self._agreed(policy, problem)
            tuning = open_tuning(problem, self._alternatives, self._stages, policy)
        except ProblemError as error:
            raise ProblemError(f"BestOf({self.name!r}): {error}") from None
        for candidate in tuning.candidates:
            if candidate.disqualified is not None:
                self._note_disqualified(problem, candidate)
        remaining = tuning.remaining()
        if not remaining:
            raise NoAlternative(
                f"{self._where(problem)}: no alternative supports it; asked {', '.join(self._names)}"
            )
        self._stored.overdue = False
        order = self._forced or self._stored.pinned(tuning.key)
        if order is not None and self._obey(order, tuning):
            return tuning
        if len(remaining) == 1:
            self._settle(tuning, remaining[0], "only")
        elif isinstance(policy, Fixed) and tuning.search.winner is not None:
            self._settle(tuning, tuning.search.winner, "forced")
        else:
            self._hold(tuning)
            self._recall(tuning)
            tuning.awaits_store = self._stored.overdue and tuning.decision is None
            tuning.asks_ahead = tuning.asks_ahead and not tuning.awaits_store
        return tuning

    def _may_begin_anew(self, tuning: Tuning, stage: int) -> bool:
        """Forget a search that began before the store had answered, as soon as it has; return whether that was done.
        A search with an open pass, or with a trial whose time is not known yet, is left alone until those are over."""
        if tuning.decision is not None:
            tuning.awaits_store = False
        if stage > 0 or tuning.decision is not None or tuning.passes or tuning.out is not None:
            return False
        if not self._stored.answers(tuning.key):
            return False
        del self._tunings[tuning.problem]
        return True

    def _obey(self, order: ForcedChoice, tuning: Tuning) -> bool:
        """Settle for what was ordered, verified by its first calls; false, and a warning, where that cannot be."""
        record = self._stored.load(tuning.key)
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

    def _neighbour_policy(
        self, policy: Policy, neighbours: Neighbours, problem: Hashable
    ) -> Policy:
        try:
            return neighbour_policy(policy, neighbours, problem, self._decisions, self._patience)
        except Exception as error:
            if not self._neighbours_failed:
                self._neighbours_failed = True
                self._notices.append(
                    f"{self._where(problem)}: neighbours raised {type(error).__name__}: {error}; searching without"
                )
            return policy

    def _tell_namesake(self, tuning: Tuning, record: Record) -> None:
        """Warn once where the store's evidence is that of another function of this name, not of an earlier version."""
        known = {evidence.alternative: evidence.version for evidence in record.evidence}
        for candidate in tuning.candidates:
            name, mine = candidate.alternative.name, candidate.alternative.version
            other = known.get(name, mine)
            there = registry.namesake(self.name, self.versions, other) if other != mine else None
            if there is not None and registry.is_news("namesake", self.name):
                self._notices.append(
                    f"{self._where(tuning.problem)}: the store's times of {name!r} are those of another function, "
                    f"{there}; they order the first trials and decide nothing; give each of the two selectors a name "
                    f"of its own"
                )

    def _note_disqualified(self, problem: Hashable, candidate: Candidate) -> None:
        name, reason = candidate.alternative.name, candidate.disqualified or ""
        self.journal.add(DisqualificationEntry(problem, name, reason))
        self._notices.append(
            f"{self._where(problem)}: alternative {name!r} was disqualified: {reason}"
        )

    def _recall(self, tuning: Tuning) -> None:
        record = self._stored.load(tuning.key)
        if record is not None:
            self._tell_namesake(tuning, record)
            search = self._verification(tuning, record)
            if search is not None:
                tuning.verify(record, search)
                return
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

    def _verification(self, tuning: Tuning, record: Record) -> Search | None:
        """Return the search that verifies a stored decision whose samples were noisy; None if none is needed."""
        policy = self._policy()
        if not is_noisy(record.evidence, record.decision) or isinstance(policy, Fixed | Window):
            return None
        known = {one.alternative: one.version for one in record.evidence}
        for candidate in tuning.candidates:
            name = candidate.alternative.name
            if candidate.remains and name == record.decision:
                if known.get(name) != candidate.alternative.version:
                    return None
                verified = Neighbour(name, cast("SearchingPolicy", policy))
                return start_search(verified, self._names)
        return None

    def _attempt(self, tuning: Tuning, stage: int, parent: Trial | None) -> Attempt:
        """Which alternative answers this call, and whether its time counts."""
        begun = tuning.passes.take(stage) if stage > 0 else None
        decision = tuning.decision
        timed = (stage == 0 and decision is None) if begun is None else begun.timed
        if begun is not None:
            position = begun.position
        elif decision is not None:
            position = decision.position
        elif stage > 0:  # a stage whose pass was never begun, or was forgotten
            position = tuning.orphan()
        else:
            best = None if self._late is None else self._late.best_known(tuning)
            position = self._ask(tuning) if best is None else best
            timed = best is None
        if stage == 0 and tuning.decision is not None:
            timed = False
            tuning.decided_calls += 1
            self._count_settled_call(tuning)
        settled = tuning.decision is not None or getattr(tuning.search, "near_tie", False)
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
            begun = tuning.passes.begin(position, len(self._stages[0]), timed=timed)
        return Attempt(self, tuning, stage, position, begun, timed, parent, settled)

    def _ask(self, tuning: Tuning) -> int:
        asked = tuning.search.ask()
        if (
            asked is None
        ):  # a window of steps has ended, or the one alternative that the policy knows was dropped
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
