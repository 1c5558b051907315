"""The selector: called like the function that it replaces, it finds the fastest alternative for
each problem."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from bestof.errors import InvalidArgument
from bestof.selection import original, registry
from bestof.selection.alternative import parse_alternatives
from bestof.selection.argument import (
    check_callable,
    check_name,
    check_neighbours,
    check_timer,
    parse_check_every,
    parse_drift,
    parse_own_policy,
    parse_own_store,
    parse_rounds,
)
from bestof.selection.chooser import Chooser
from bestof.selection.drift_watch import DriftWatch
from bestof.selection.forced_choice import forced
from bestof.selection.guard import Guard, validate_check
from bestof.selection.hot_path import HotPath
from bestof.selection.journal import Entry, Journal
from bestof.selection.knowledge import Knowledge
from bestof.selection.late_times import LateTimes
from bestof.selection.new_problem import Neighbours, NewProblems
from bestof.selection.policies.argument import check_count
from bestof.selection.policy import Policy
from bestof.selection.policy_choice import PolicyChoice
from bestof.selection.report import ProblemReport, SelectorReport
from bestof.selection.report_builder import Price, report_problem, report_selector
from bestof.selection.store.protocol import Store
from bestof.selection.teaching import Teaching, learn, teachings
from bestof.selection.timer import Timer


class BestOf(HotPath):
    """Picks the fastest of several alternatives for each problem, on the live calls.

    It is called like the function that it replaces. `get_problem_size` says which problem a call
    is. While a problem is unsettled, its policy names an alternative for each call, and the call is
    timed. With enough times the problem is
    settled: it has a decision, which the store keeps, and its calls go straight to the winner.
    Settled calls are timed now and then, and the race is reopened if the winner has drifted.

    The parts: `Knowledge` holds problems and decisions, `NewProblems` opens a problem, `Chooser`
    answers unsettled calls, `DriftWatch` times settled ones. `HotPath` answers settled calls
    without any of them.

    name: how reports and the store call this selector. alternatives: pairs `(name, function)`, or
    for a group `(name, [f0, f1, ...])`, or `Alternative` objects; the first is the reference.
    get_problem_size: called with the arguments of each call (without the stage), returns a hashable
    value that says which problem it is.
    policy: how the search goes, a Policy or its text such as "race:tie=0.05". The default is
    `Race`. If one of rounds (10), pruning_speedup (10) and prune_after_round (4) is given, it is
    the paper's `Rounds` with these three.
    check: None, a relative tolerance, or a function of (expected, got): the first result of every
    alternative is compared with the first alternative's, and a wrong one disqualifies. restore:
    called with the arguments before each trial, returns a function that puts them back; needed
    where alternatives change their arguments and may fail.
    store: where decisions are kept: a Store, its URL, "off", or None for the default one.
    clock: seconds, as time.perf_counter. max_problems: how many problems stay in memory; the least
    recently used leave it first, and are found in the store again.
    check_every: every so many calls of a settled problem are compared again; a mismatch
    disqualifies the winner, is answered by the first alternative's result, and reopens the search.
    Settled calls of a winner other than the first then take the long way, some microseconds each.
    neighbours: called with a new problem, returns known ones that are close; the decision of the
    first of these that is settled is tried first, and verified by a short race without what took
    three times as long there. Goes with the policy Race only. What it raises is warned of once, and
    problems that nobody knows are passed over. patience: so many first calls of such a problem take
    the neighbour's decision before the race begins.
    on_event: called with every entry of the journal, outside of locks; what it raises is warned of
    once.
    drift: settled calls are timed now and then, and the race is run again where the winner has
    become slower than when it won, or so much faster that it must have been measured on a busy
    machine. False: a decision stands. None: as BESTOF_DRIFT=on|off says, on by default.
    timer: where calls return before their work is done, as on a GPU: a Timer, whose times come
    later, in place of the clock. Until a trial's time is known, further calls of its problem go to
    the best alternative known. Not for groups; decisions then stand, as nothing is watched for
    drift.

    A copy, by `copy` or by pickle, is a selector of its own, made from the same arguments: it
    starts with the decisions of the original, counts for itself, and shares policy and store.
    `copy.deepcopy` copies the alternatives too, so that the methods of an object that is copied
    with its selector become those of the copy.

    Orders from outside come before policy and evidence: BESTOF_FORCE="selector=alternative[,...]"
    in the environment, read here, then a pin in the store, asked for when a problem is first met.
    One that cannot be obeyed is warned of once, and the search goes its way; what was ordered and
    then fails is disqualified, and reopens the search.

    Raises InvalidArgument for arguments that cannot be used, ProblemError for a problem that is not
    hashable, StageError for a stage that the group does not have, NoAlternative where none applies
    or all fail.
    """

    def __init__(
        self,
        name: str,
        alternatives: Sequence[Any],
        get_problem_size: Callable[..., Hashable],
        rounds: int | None = None,
        pruning_speedup: float | None = None,
        prune_after_round: int | None = None,
        *,
        policy: Policy | str | None = None,
        check: Any = None,
        restore: Callable[..., Callable[[], object]] | None = None,
        store: Store | str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        max_problems: int = 4096,
        check_every: int | None = None,
        neighbours: Neighbours | None = None,
        patience: int = 0,
        on_event: Callable[[Entry], object] | None = None,
        drift: bool | None = None,
        timer: Timer | None = None,
    ) -> None:
        given = dict(locals())
        before = frozenset(vars(self))  # of a subclass, which copies are to have
        del given["self"]
        check_name(name)
        where = f"BestOf({name!r})"
        parsed = parse_alternatives(name, alternatives)
        check_callable(where, "get_problem_size", get_problem_size)
        check_callable(where, "clock", clock)
        max_problems = check_count(where, "max_problems", max_problems, 2)
        for argument, value in (("restore", restore), ("on_event", on_event)):
            if value is not None:
                check_callable(where, argument, value)
        paper, by_rounds = parse_rounds(where, rounds, pruning_speedup, prune_after_round)
        names = [alternative.name for alternative in parsed]
        own_policy = parse_own_policy(where, policy, paper if by_rounds else None, names)
        check_neighbours(where, neighbours, own_policy)
        patience = check_count(where, "patience", patience, 0)
        check_timer(where, timer, parsed)
        if (
            check is not None
            and restore is None
            and any(alternative.mutates for alternative in parsed)
        ):
            raise InvalidArgument(
                f"{where}: check: needs restore= where alternatives change their arguments"
            )
        own_store = parse_own_store(where, store)
        choice = PolicyChoice(own_policy, drift=parse_drift(where, drift) and timer is None)
        guard = Guard(
            validate_check(name, check), restore, clock, None if timer is None else LateTimes(timer)
        )
        self.name = name
        self.get_problem_size = get_problem_size
        self.journal = Journal(listener=on_event)
        knowledge = self._knowledge = Knowledge(
            name,
            parsed,
            choice=choice,
            find_store=registry.shared_store if store is None else lambda: own_store,
            check_every=parse_check_every(where, check, check_every),
            max_problems=max_problems,
            journal=self.journal,
        )
        self._watch = DriftWatch(knowledge, choice, clock)
        new_problems = NewProblems(
            knowledge,
            choice,
            self._watch,
            neighbours,
            patience,
            forced(name, names),
            asks_ahead=guard.is_plain and not knowledge.grouped,
        )
        # What the hot path reads, and what it calls where it cannot answer.
        self._settled = knowledge.settled
        self._first = knowledge.functions[0]
        self._stage_count = knowledge.stage_count
        self._long_way = Chooser(knowledge, guard, new_problems).answer  # type: ignore[method-assign]  # one call less
        self._sampled = self._watch.sampled  # type: ignore[method-assign]  # as above
        self.alternatives = list(alternatives)
        self.alternative_names = tuple(names)
        self.versions = knowledge.versions
        self.number = 0
        self.total_alternatives = len(parsed)
        self.total_rounds = paper.rounds
        self.pruning_speedup = paper.pruning_speedup
        self.prune_after_round = paper.prune_after_round
        self._given = given
        self._made_of = (frozenset(vars(self)) - before) | {"_made_of"}
        registry.register(self)

    # What a program asks for

    def explain(self, *args: Any, **kwargs: Any) -> ProblemReport:
        """Return all that is known of one problem. Takes the arguments of a call (for a group:
        without the stage)."""
        problem, known = self._problem("explain", args, kwargs), self._knowledge
        with known.lock:
            decision, tuning = known.decisions.get(problem), known.tunings.get(problem)
            return report_problem(problem, decision, tuning, known.alternatives)

    def report(self) -> SelectorReport:
        """Return all that is known of every problem; `print` it, or read its fields."""
        known = self._knowledge
        with known.lock:
            return report_selector(
                self.name,
                self.stages,
                known.decisions,
                known.tunings,
                known.alternatives,
                Price(known.trials, known.trial_seconds, known.loss_seconds),
                known.savings(),
            )

    @property
    def trials(self) -> int:
        """The number of timed calls."""
        return self._knowledge.trials

    @property
    def trial_seconds(self) -> float:
        """What they took."""
        return self._knowledge.trial_seconds

    @property
    def loss_seconds(self) -> float:
        """The part of it that calls of the chosen alternatives would not have taken."""
        return self._knowledge.loss_seconds

    @property
    def settled_calls(self) -> int:
        """How many calls went straight to a winner, whether it then raised or not."""
        return self._knowledge.savings().calls

    @property
    def saved_seconds(self) -> float:
        """What these calls are estimated to have saved against the first alternative."""
        return self._knowledge.savings().seconds

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled yet, so that the next run goes on
        where this one ended."""
        self._knowledge.flush()

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem anew, as another rank of a job does; false if it is not settled
        here."""
        return self._watch.race_again(problem)

    def after_fork(self) -> None:
        """In a child process: decisions stay, trials that other threads had begun in the parent are
        dropped."""
        self._knowledge.after_fork()
        self._watch.after_fork()

    def asked_store(self) -> Store | None:
        """Return the store, if this selector has met a problem; to find the default one may create
        it."""
        return self._knowledge.asked_store()

    def print_as_table(self) -> None:
        """Print what is known of every problem."""
        print(self.report())

    @staticmethod
    def print_report() -> None:
        """Print what is known of every selector of the process."""
        print(registry.report_all())

    def best_method_has_been_found(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the problem of these arguments (for a group: without the stage) is settled."""
        return (
            self._problem("best_method_has_been_found", args, kwargs) in self._knowledge.decisions
        )

    # What programs written for the original read

    @property
    def stages(self) -> int:
        """The number of functions of each alternative."""
        return len(self._first)

    @property
    def best_idx(self) -> dict[Hashable, int]:
        """The position of the chosen alternative by problem; -1 for a problem without a
        decision."""
        return original.best_positions(self._knowledge)

    @property
    def best_name(self) -> dict[Hashable, str]:
        """The name of the chosen alternative by problem; "None" for a problem without a
        decision."""
        return original.best_names(self._knowledge)

    @property
    def best_method(self) -> dict[Hashable, Any]:
        """The chosen function by problem; None for a problem without a decision, and in a selector
        of groups."""
        return original.best_functions(self._knowledge)

    @property
    def best_pipeline(self) -> dict[Hashable, Any]:
        """The chosen functions by problem, by stage; None for a problem without a decision, and
        without groups."""
        return original.best_groups(self._knowledge)

    def medians(self) -> dict[Hashable, list[float]]:
        """Return the median seconds of each alternative in list order by problem; NaN for one
        without a sample."""
        return original.medians(self._knowledge)

    def speedups(self) -> dict[Hashable, float]:
        """Return how many times the chosen alternative is faster than the slowest one, by measured
        problem."""
        return original.speedups(self._knowledge)

    @classmethod
    def use_always_the_first_alternative(cls, value: bool = True, update: bool = False) -> None:  # noqa: ARG003
        """From now on every selector of the process calls its first alternative, and tries nothing.

        `value` false is the opposite. `update` is the original's and changes nothing: every
        selector follows at once.
        """
        registry.use_first_only(value)

    @classmethod
    def use_the_best_alternative(cls) -> None:
        """The opposite: selectors choose again; what they knew, they still know."""
        registry.use_first_only(False)

    def __repr__(self) -> str:
        names = ", ".join(alternative.name for alternative in self._knowledge.alternatives)
        return (
            f"<BestOf {self.name!r} of {names}; {len(self._knowledge.decisions)} problems settled>"
        )

    def _problem(self, asked: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        try:
            problem = self.get_problem_size(*args, **kwargs)
        except Exception as error:
            stage = ", for a group without the stage" if self._stage_count else ""
            raise InvalidArgument(
                f"BestOf({self.name!r}): {asked} takes the arguments of a call{stage}: "
                f"{asked}{_signature(self.get_problem_size)}; "
                f"get_problem_size raised {type(error).__name__}: {error}"
            ) from error
        try:
            hash(problem)
        except TypeError as error:
            raise self._unhashable(problem) from error
        return problem

    # Copies

    def __copy__(self) -> BestOf:
        return _remade(type(self), self._arguments(), *self._brought())

    def __deepcopy__(self, memo: dict[int, Any]) -> BestOf:
        made = type(self).__new__(type(self))
        memo[id(self)] = (
            made  # first: an alternative may be a method of an object that holds this selector
        )
        for shared in ("policy", "store", "clock", "on_event", "timer"):
            memo.setdefault(id(self._given[shared]), self._given[shared])
        beside, taught = self._brought()
        return _fill(
            made, copy.deepcopy(self._arguments(), memo), copy.deepcopy(beside, memo), taught
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_remade, (type(self), self._arguments(), *self._brought()))

    def _arguments(self) -> dict[str, Any]:
        """What a copy is made from: a program may have set the problem function since."""
        return {**self._given, "get_problem_size": self.get_problem_size}

    def _brought(self) -> tuple[_Beside, list[Teaching]]:
        """What a copy gets beside the arguments: attributes that a program has set, and the
        decisions."""
        attributes = {
            name: value for name, value in vars(self).items() if name not in self._made_of
        }
        slots = {
            name: getattr(self, name) for name in _own_slots(type(self)) if hasattr(self, name)
        }
        return (attributes, slots), teachings(self._knowledge)


def _signature(function: Callable[..., Hashable]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):  # a compiled function may have none
        return "(...)"


_Beside = tuple[
    dict[str, Any], dict[str, Any]
]  # attributes in the dictionary of an object, and in slots


def _own_slots(kind: type[BestOf]) -> list[str]:
    """The slots of subclasses, as they are stored."""
    names = []
    for owner in kind.__mro__:
        slots = () if owner in BestOf.__mro__ else owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{owner.__name__.lstrip('_')}{name}" if private else name)
    return names


def _remade(
    kind: type[BestOf], given: dict[str, Any], beside: _Beside, taught: list[Teaching]
) -> BestOf:
    return _fill(kind.__new__(kind), given, beside, taught)


def _fill(made: BestOf, given: dict[str, Any], beside: _Beside, taught: list[Teaching]) -> BestOf:
    BestOf.__init__(made, **given)
    attributes, slots = beside
    vars(made).update(attributes)
    for name, value in slots.items():
        setattr(made, name, value)
    learn(made._knowledge, taught)
    return made
