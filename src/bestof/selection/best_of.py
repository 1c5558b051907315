"""The selector: called like the function that it replaces, it finds the fastest alternative for each problem.

A call -> problem -> settled? -> run it. Otherwise policy.ask -> guard -> clock -> run -> policy.tell -> journal ->
perhaps a decision -> store. There is no second way through.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from bestof.errors import InvalidArgument, NoAlternative, StageError
from bestof.selection import registry
from bestof.selection.alternative import Alternative, Function, parse_alternatives
from bestof.selection.attempt import Attempt
from bestof.selection.guard import validate_check
from bestof.selection.host import host
from bestof.selection.hot_path import HotPath
from bestof.selection.journal import DecisionEntry, Journal
from bestof.selection.policies import Race, Rounds, parse_policy
from bestof.selection.policy import Policy
from bestof.selection.problem import canonical
from bestof.selection.record import Record
from bestof.selection.report import ProblemReport, SelectorReport
from bestof.selection.reporting import report_problem, report_selector
from bestof.selection.store import open_store
from bestof.selection.store.protocol import Store
from bestof.selection.trial import Trial, current_trial
from bestof.selection.tuning import Candidate, Decision, Tuning

_log = logging.getLogger("bestof")


class BestOf(HotPath):
    """Picks the fastest of several alternatives for each problem, on the live calls.

    name: how reports and the store call this selector. alternatives: pairs `(name, function)`, or for a group
    `(name, [f0, f1, ...])`, or `Alternative` objects; the first is the reference. get_problem_size: called with the
    arguments of each call (without the stage), returns a hashable value that says which problem it is.
    policy: how the search goes, a Policy or its text such as "race:tie=0.05". By default `Race`; where one of rounds,
    pruning_speedup and prune_after_round differs from its default, the paper's `Rounds` with these three.
    check: None, a relative tolerance, or a function of (expected, got): the first result of every alternative is
    compared with the first alternative's, and a wrong one disqualifies. restore: called with the arguments before each
    trial, returns a function that puts them back; needed where alternatives change their arguments and may fail.
    store: where decisions are kept: a Store, its URL, "off", or None for the default one.
    clock: seconds, as time.perf_counter. max_problems: how many problems stay in memory; the least recently used leave
    it first, and are found in the store again.

    Raises InvalidArgument for arguments that cannot be used, ProblemError for a problem that is not hashable,
    StageError for a stage that the group does not have, NoAlternative where none applies or all fail.
    """

    def __init__(
        self,
        name: str,
        alternatives: Sequence[Any],
        get_problem_size: Callable[..., Hashable],
        rounds: int = 10,
        pruning_speedup: float = 10.0,
        prune_after_round: int = 4,
        *,
        policy: Policy | str | None = None,
        check: Any = None,
        restore: Callable[..., Callable[[], object]] | None = None,
        store: Store | str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        max_problems: int = 4096,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgument(f"BestOf: name: expected a text that is not empty; got {name!r}")
        where = f"BestOf({name!r})"
        self._alternatives: tuple[Alternative, ...] = parse_alternatives(name, alternatives)
        for argument, value in (("get_problem_size", get_problem_size), ("clock", clock), ("restore", restore)):
            if not callable(value) and not (argument == "restore" and value is None):
                raise InvalidArgument(f"{where}: {argument}: expected a callable; got {type(value).__name__}")
        if isinstance(max_problems, bool) or not isinstance(max_problems, int) or max_problems < 2:
            raise InvalidArgument(f"{where}: max_problems: expected an integer of at least 2; got {max_problems!r}")
        if policy is not None and not isinstance(policy, str) and not callable(getattr(policy, "start", None)):
            raise InvalidArgument(f"{where}: policy: expected a policy or its text; got {type(policy).__name__}")
        rounds_policy = Rounds(rounds, pruning_speedup, prune_after_round)
        self._own_policy: Policy | None = parse_policy(policy) if isinstance(policy, str) else policy
        if policy is None and rounds_policy != Rounds():
            self._own_policy = rounds_policy
        self._check = validate_check(name, check)
        self._restore = restore
        if check is not None and restore is None and any(alternative.mutates for alternative in self._alternatives):
            raise InvalidArgument(f"{where}: check: needs restore= where alternatives change their arguments")
        self._own_store = open_store(store) if isinstance(store, str) else store
        self._store_named = store is not None

        self.name = name
        self.alternatives = list(alternatives)
        self.get_problem_size = get_problem_size
        self.total_alternatives = len(self._alternatives)
        self.total_rounds = rounds
        self._clock = clock
        self._max_problems = max_problems
        self._grouped = self._alternatives[0].is_group
        self._stages: tuple[dict[int, Function], ...] = tuple(
            dict(enumerate(alternative.stages)) for alternative in self._alternatives
        )
        self._lock = threading.RLock()
        self._settled = {}
        self._older: dict[Hashable, dict[int, Function]] = {}
        self._decisions: dict[Hashable, Decision] = {}
        self._tunings: dict[Hashable, Tuning] = {}
        self.journal = Journal()
        self.trials = 0
        self.trial_seconds = 0.0
        self.loss_seconds = 0.0
        self.number = registry.register(self)

    # What a program asks for

    def explain(self, *args: Any, **kwargs: Any) -> ProblemReport:
        """All that is known of the problem of these arguments (for a group: without the stage)."""
        problem = self.get_problem_size(*args, **kwargs)
        with self._lock:
            return report_problem(problem, self._decisions.get(problem), self._tunings.get(problem), self._alternatives)

    def report(self) -> SelectorReport:
        """All that is known of every problem; `print` it, or read its fields."""
        with self._lock:
            return report_selector(
                self.name,
                len(self._stages[0]),
                self._decisions,
                self._tunings,
                self._alternatives,
                (self.trials, self.trial_seconds, self.loss_seconds),
            )

    def print_as_table(self) -> None:
        """Print what is known of every problem."""
        print(self.report())

    @staticmethod
    def print_report() -> None:
        """Print what is known of every selector of the process."""
        print(registry.report_all())

    def best_method_has_been_found(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the problem of these arguments (for a group: without the stage) is settled."""
        return self.get_problem_size(*args, **kwargs) in self._decisions

    @classmethod
    def use_always_the_first_alternative(cls) -> None:
        """From now on every selector of the process calls its first alternative, and tries nothing."""
        registry.use_first_only(True)

    @classmethod
    def use_the_best_alternative(cls) -> None:
        """The opposite: selectors choose again; what they knew, they still know."""
        registry.use_first_only(False)

    def __repr__(self) -> str:
        names = ", ".join(alternative.name for alternative in self._alternatives)
        return f"<BestOf {self.name!r} of {names}; {len(self._decisions)} problems settled>"

    # The long way

    def _long_way(self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if stage not in self._stages[0]:
            stages = len(self._stages[0])
            raise StageError(f"{self._where(problem)}: expected a stage from 0 to {stages - 1}; got {stage!r}")
        if registry.first_only():
            return self._stages[0][stage](*args, **kwargs)
        parent = current_trial.get()
        function = None
        with self._lock:
            tuning = self._tunings.get(problem)
            if tuning is None:
                function = self._settled_function(problem, stage)
                if function is None:
                    tuning = self._begin(problem)
                    function = self._settled_function(problem, stage)
            if tuning is not None and function is None:
                attempt = self._attempt(tuning, stage, parent)
        if function is not None:
            if parent is not None:
                parent.meets(self.name, problem, settled=True)
            return function(*args, **kwargs)
        return attempt.run(args, kwargs)

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
        if len(self._settled) >= self._max_problems // 2:
            for forgotten in self._older:
                self._decisions.pop(forgotten, None)
            self._older, self._settled = self._settled, {}
        self._settled[problem] = winner

    def _begin(self, problem: Hashable) -> Tuning:
        """Meet a problem for the first time in this process: ask who applies, and what earlier runs knew."""
        candidates = [
            Candidate(alternative, stages, applies=alternative.supports is None or bool(alternative.supports(problem)))
            for alternative, stages in zip(self._alternatives, self._stages, strict=True)
        ]
        if not any(candidate.applies for candidate in candidates):
            tried = ", ".join(alternative.name for alternative in self._alternatives)
            raise NoAlternative(f"{self._where(problem)}: no alternative supports it; asked {tried}")
        search = self._policy().start([alternative.name for alternative in self._alternatives])
        tuning = Tuning(problem, canonical(problem), candidates, search)
        for position, candidate in enumerate(candidates):
            if not candidate.applies:
                search.drop(position)
        remaining = tuning.remaining()
        if len(remaining) == 1:
            self._settle(tuning, remaining[0], "only")
            return tuning
        if search.winner is not None:
            self._settle(tuning, search.winner, "forced")
            return tuning
        while len(self._tunings) >= self._max_problems:
            del self._tunings[next(iter(self._tunings))]
        self._tunings[problem] = tuning
        self._recall(tuning)
        return tuning

    def _recall(self, tuning: Tuning) -> None:
        store = self._store()
        record = store.load(self.name, tuning.key, host()) if store is not None and tuning.key is not None else None
        if record is None:
            return
        tuning.replay(record)
        winner = tuning.stored_winner(record)
        if winner is not None:
            tuning.verified = False
            self._settle(tuning, winner, "stored")

    def _attempt(self, tuning: Tuning, stage: int, parent: Trial | None) -> Attempt:
        """Which alternative answers this call, and whether its time counts."""
        begun = None
        timed = True
        if stage > 0:
            begun = tuning.pass_at(stage)
            if begun is not None:
                position = begun.position
            else:  # a stage whose pass was never begun, or was forgotten
                timed = False
                position = tuning.decision.position if tuning.decision is not None else tuning.remaining()[0]
        elif tuning.decision is not None:
            position, timed = tuning.decision.position, False
            tuning.drain -= 1
        else:
            asked = tuning.search.ask()
            assert asked is not None, "a search without a winner has somebody to ask for"
            position = asked
            if self._grouped:
                begun = tuning.open_pass(position, len(self._stages[0]))
        if parent is not None:
            above = parent.positions_above(self, tuning.problem)
            if position in above:
                # The alternative called this selector again with the same problem: another one must answer.
                others = [other for other in tuning.remaining() if other not in above]
                if not others:
                    raise NoAlternative(
                        f"{self._where(tuning.problem)}: every alternative calls this selector again with the very same "
                        f"problem; one of them must answer by itself"
                    )
                position, begun, timed = others[0], None, False
        return Attempt(self, tuning, stage, position, begun, timed, parent)

    def conclude(self, tuning: Tuning) -> None:
        """Take what an attempt brought: perhaps a decision. Called by attempts, with the lock held."""
        winner = tuning.search.winner
        if tuning.decision is None:
            if winner is None:
                return
            self._settle(tuning, winner, "measured")
        elif tuning.verified and not tuning.draining():
            self._publish(tuning)

    def reopen(self, tuning: Tuning) -> None:
        """The decided alternative no longer runs: search among the others. Called with the lock held."""
        tuning.decision = None
        tuning.verified = True
        self._decisions.pop(tuning.problem, None)

    def _settle(self, tuning: Tuning, position: int, source: str) -> None:
        evidence = tuple(candidate.evidence() for candidate in tuning.candidates if candidate.applies)
        decision = Decision(tuning.problem, self._alternatives[position].name, position, source, evidence)
        tuning.decision = decision
        self._decisions[tuning.problem] = decision
        self.journal.add(DecisionEntry(tuning.problem, decision.alternative, source))
        best = evidence_seconds(tuning.candidates[position])
        for candidate in tuning.candidates:
            self.loss_seconds += max(0.0, candidate.seconds - candidate.calls * best)
        _log.info("%s: %s (%s)", self._where(tuning.problem), decision.alternative, source)
        if source == "measured":
            self._save(tuning)
        if tuning.verified and not tuning.draining():
            self._publish(tuning)

    def _publish(self, tuning: Tuning) -> None:
        assert tuning.decision is not None
        self._tunings.pop(tuning.problem, None)
        self._remember(tuning.problem, self._stages[tuning.decision.position])

    def _save(self, tuning: Tuning) -> None:
        store = self._store()
        record: Record | None = tuning.record(self.name, host(), time.time()) if store is not None else None
        if store is not None and record is not None:
            store.save(record)

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled yet, so that the next run goes on where this one ended."""
        with self._lock:
            for tuning in self._tunings.values():
                if tuning.decision is None:
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
        return f"BestOf({self.name!r}), problem {canonical(problem) or problem!r}"


def evidence_seconds(candidate: Candidate) -> float:
    """The median of what counted; 0 where nothing did."""
    return candidate.evidence().seconds or 0.0


def best_of(
    name: str, alternatives: Sequence[Any], get_problem_size: Callable[..., Hashable], **options: Any
) -> Callable[[Callable[..., Any]], BestOf]:
    """The decorator form of BestOf: the function that it decorates is the first alternative, under its own name.

    Takes what BestOf takes; `alternatives` are the others.
    """

    def decorate(function: Callable[..., Any]) -> BestOf:
        first = (getattr(function, "__name__", "first"), function)
        selector = BestOf(name, [first, *alternatives], get_problem_size, **options)
        selector.__doc__ = function.__doc__
        return selector

    return decorate
