"""The selector: it is called like a function, and finds the fastest alternative for each
problem."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from bestof.configuration import parse_share
from bestof.entries import entries
from bestof.errors import InvalidArgument
from bestof.selection.call.chooser import Chooser
from bestof.selection.call.drift_watch import DriftWatch
from bestof.selection.call.new_problem import Neighbours, NewProblems
from bestof.selection.hot_path import HotPath
from bestof.selection.identity.problem import canonical
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.policies.policy import Policy
from bestof.selection.reports.paper_interface import PaperInterface
from bestof.selection.reports.report import Met, ProblemReport, SelectorReport
from bestof.selection.reports.report_builder import (
    report_all,
    report_problem,
    report_selector,
    with_calls,
)
from bestof.selection.settings import Settings, parse_settings
from bestof.selection.state import registry
from bestof.selection.state.budget import SHARE
from bestof.selection.state.copies import Beside, Teaching, fill, own_slots, remade, teachings
from bestof.selection.state.family import family_of
from bestof.selection.state.forced_choice import ForcedChoice, forced
from bestof.selection.state.journal import Entry, Journal, logging_trials
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.lock import Lock
from bestof.selection.store.protocol import Store
from bestof.selection.trials.timer import Timer


class BestOf(PaperInterface, HotPath):
    """Picks the fastest of several alternatives for each problem, on the live calls.

    It is called like the function that it replaces. `get_problem_size` tells which problem a call
    is. While a problem is unsettled, its policy names an alternative for each call, and bestof
    times the call. After enough trials the problem is settled. It then has a decision, which the
    store keeps, and its calls go straight to the winner. bestof times some settled calls, and
    reopens the race if the winner has drifted.

    The parts: `Knowledge` holds problems and decisions, `NewProblems` opens a problem, `Chooser`
    answers unsettled calls, `DriftWatch` times settled ones. `HotPath` answers settled calls
    without any of them.

    name: the name in reports and in the store.
    alternatives: pairs `(name, function)`, or for a group `(name, [f0, f1, ...])`, or `Alternative`
        objects. The first one is the reference.
    get_problem_size: called with the arguments of each call (without the stage). Returns a hashable
        value, the problem.
    policy: the search, as a Policy or as text such as "race:tie=0.05". The default is `Race`.
    rounds (10), pruning_speedup (10), prune_after_round (4): if one of them is given, the policy is
        the paper's `Rounds` with these values.
    check: None, a relative tolerance, or a function of (expected, got). The first result of each
        alternative is compared with the first alternative's. A wrong result disqualifies.
    restore: called with the arguments before each trial. Returns a function that puts them back.
        Alternatives that change their arguments and may fail need it.
    store: where decisions are kept: a Store, its URL, "off", or None for the default store.
    clock: a function that returns seconds, like time.perf_counter.
    max_problems: the number of problems in memory. The least recently used are evicted first; the
        store still has them.
    max_searches: the number of problems that are searched at once; None for `max_problems`. While
        so many searches are under way, the first alternative that applies answers new problems,
        without a trial and without the check. A search that no longer makes progress gives way to
        a problem that keeps coming back. So a program whose problems never repeat does not grow.
    check_every: the number of settled calls of a problem after which one is compared again. If the
        results differ, the first alternative's result is returned, the winner is disqualified, and
        the race is reopened. Settled calls then take the long way (some microseconds each), unless
        the first alternative has won.
    neighbours: called with a new problem. Returns similar problems. The race of the new problem
        begins with the decision of the first of these that is settled. This race is short, and
        leaves out alternatives that took three times as long there. bestof warns once if
        `neighbours` raises. Works only with the policy Race.
    patience: the number of first calls of such a problem that the neighbour's decision answers
        before the race begins.
    on_event: called with every entry of the journal, outside of locks. bestof warns once if it
        raises.
    drift: whether settled calls are timed now and then. The race is run again if the winner has
        become slower than when it won, and if it has become so much faster that the race must have
        run on a busy machine. None: as the environment variable BESTOF_DRIFT says (on or off; the
        default is on).
    timer: a Timer in place of the clock, for calls that return before their work is done, as on a
        GPU. Until the time of a trial is known, further calls of its problem go to the best known
        alternative. A timer does not work with groups, and switches `drift` off.
    budget: the share of the time since the first trial that all trials of the process may cost, or
        None for no bound. While the budget is used up, the best alternative known so far answers
        unsettled calls. The first 0.1 s are free. See `Budget`.

    A copy, made by `copy` or by pickle, is a selector of its own with the same arguments. It starts
    with the decisions of the original, and shares its policy and store. `copy.deepcopy` also copies
    the alternatives. If an object is copied with its selector, the methods of the object among the
    alternatives become those of the copy.

    Users can order an alternative by BESTOF_FORCE="selector=alternative[,...]" in the environment,
    which is read here, or by a pin in the store, which is read when a problem is first called. An
    order comes before policy and evidence. If an order cannot be obeyed, bestof warns once and
    searches. If an ordered alternative fails, it is disqualified, and bestof searches.

    Raises InvalidArgument for invalid arguments, ProblemError for a problem that is not hashable,
    StageError for a stage that the group does not have, and NoAlternative if no alternative applies
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
        max_searches: int | None = None,
        check_every: int | None = None,
        neighbours: Neighbours | None = None,
        patience: int = 0,
        on_event: Callable[[Entry], object] | None = None,
        drift: bool | None = None,
        timer: Timer | None = None,
        budget: float | None = SHARE,
    ) -> None:
        given = dict(locals())
        before = frozenset(vars(self))  # attributes of a subclass, which copies take over
        del given["self"]
        settings = parse_settings(**given)
        self.name = name
        self.get_problem_size = get_problem_size
        self.journal = Journal(listener=logging_trials(name, on_event))
        order = forced(name, settings.names)
        self._list(alternatives, settings)
        self._connect(settings, neighbours, order)
        self.number = 0
        self.total_rounds = settings.paper.rounds
        self.pruning_speedup = settings.paper.pruning_speedup
        self.prune_after_round = settings.paper.prune_after_round
        self.met: Callable[[], Mapping[Any, Met]] | None = None
        """How often each problem was met, and where, if whoever calls the selector counts that."""
        self._given = given
        self._made_of = (frozenset(vars(self)) - before) | {"_made_of"}
        registry.register(self)

    def _list(self, alternatives: Sequence[Any], settings: Settings) -> None:
        """Set the attributes that tell what is chosen among."""
        self.alternatives = list(alternatives)
        self.alternative_names = tuple(settings.names)
        self.versions = tuple(one.version for one in settings.alternatives)
        self.total_alternatives = len(settings.alternatives)

    def _connect(
        self,
        settings: Settings,
        neighbours: Neighbours | None,
        order: ForcedChoice | None,
        earlier: Knowledge | None = None,
    ) -> None:
        """Make the parts, and set the attributes that the hot path reads and calls."""
        guard, choice = settings.guard, settings.choice
        knowledge = Knowledge(
            self.name,
            settings.alternatives,
            choice=choice,
            find_store=settings.find_store,
            check_every=settings.check_every,
            verifier=guard.verifier,
            max_problems=settings.max_problems,
            journal=self.journal,
            plain=guard.is_plain,
            family=family_of(self.name, *settings.manner),
            budget=registry.account_of(guard.clock),
            share=settings.share,
        )
        if earlier is not None:
            knowledge.succeed(earlier)
        self._watch = DriftWatch(knowledge, choice, guard.clock)
        new_problems = NewProblems(
            knowledge,
            choice,
            self._watch,
            neighbours,
            settings.patience,
            order,
            max_searches=settings.max_searches,
        )
        self._settled = knowledge.settled
        self._first = knowledge.functions[0]
        self._stage_count = knowledge.stage_count
        # Attributes in place of methods, which saves one Python call per call.
        long_way = Chooser(knowledge, guard, new_problems).answer
        self._long_way = long_way  # type: ignore[method-assign]  # on purpose, as said
        self._sampled = self._watch.sampled  # type: ignore[method-assign]  # on purpose, as said
        self._knowledge = knowledge  # last: a thread that sees it finds the others, too

    # Alternatives at run time

    def add(self, alternative: Any) -> None:
        """Choose among one more alternative from now on: an `Alternative` or (name, function).

        Each problem is searched again at its next call, and keeps its evidence: only the new
        alternative needs trials. A call that runs meanwhile in another thread ends as it began.
        A problem without a text (see `canonical`) has no evidence to keep, and is searched anew.
        Raises InvalidArgument, before anything is changed, if the name is taken, or for a group,
        whose open passes would be lost.
        """
        self._check_plain("add")
        self._change(lambda present: [*present, alternative])

    def remove(self, name: str) -> None:
        """Choose among all other alternatives from now on.

        A problem that had chosen this alternative takes the best of the others by their evidence
        at its next call, or goes on with its search if that does not decide. Other problems keep
        their decisions. Raises InvalidArgument, before anything is changed, if there is no such
        alternative, for the first one, which is the reference, and for a group.
        """
        self._check_plain("remove")

        def others(present: Sequence[Any]) -> Sequence[Any]:
            names = self.alternative_names
            if name not in names[1:]:
                is_first = name in names
                why = "the first one is the reference, and stays" if is_first else "there is none"
                raise InvalidArgument(
                    f"BestOf({self.name!r}): remove: expected one of "
                    f"{', '.join(map(repr, names[1:])) or 'none'}; got {name!r}: {why}"
                )
            place = names.index(name)
            return [one for k, one in enumerate(present) if k != place]

        self._change(others)

    def _check_plain(self, asked: str) -> None:
        if self._stage_count:
            raise InvalidArgument(
                f"BestOf({self.name!r}): {asked}: its alternatives are groups, which cannot change "
                "while passes are open; make another selector"
            )

    def choose_among(self, alternatives: Sequence[Any], **changed: Any) -> None:
        """Choose among these alternatives from now on, by what is known of them.

        changed: other arguments of the selector, such as its policy. Passes of a group that are
        open meanwhile are answered as if they had never begun. Raises InvalidArgument, before
        anything is changed, for invalid arguments, and if BESTOF_FORCE orders none of them.
        """
        self._change(lambda _: alternatives, **changed)

    def _change(self, change: Callable[[Sequence[Any]], Sequence[Any]], **changed: Any) -> None:
        """Choose among what `change` makes of the alternatives, one thread after the other."""
        while True:
            known = self._knowledge
            with known.lock:
                if known is not self._knowledge:  # another thread has changed them meanwhile
                    continue
                alternatives = change(self.alternatives)
                given = {**self._arguments(), "alternatives": alternatives, **changed}
                settings = parse_settings(**given)
                order = forced(self.name, settings.names)
                self._given = given
                self._list(alternatives, settings)
                self._connect(settings, given["neighbours"], order, known)
                break
        registry.meet_fixed([self])

    # Reports and control

    def explain(self, *args: Any, **kwargs: Any) -> ProblemReport:
        """Return what is known of one problem.

        Takes the arguments of a call, for a group without the stage.
        """
        problem, known = self._problem("explain", args, kwargs), self._knowledge
        with known.lock:
            decision, tuning = known.decisions.get(problem), known.tunings.get(problem)
            surcharges = self._surcharges()
            found = report_problem(problem, decision, tuning, known.alternatives, surcharges)
        return found if self.met is None else with_calls(found, self.met().get(problem, Met(0)))

    def report(self) -> SelectorReport:
        """Return what is known of every problem, as a value that can be printed."""
        known = self._knowledge
        met = None if self.met is None else self.met()
        with known.lock:
            calls = {problem: one.calls // len(one.functions) for problem, one in known.winners()}
            return report_selector(
                self.name,
                self.stages,
                known.decisions,
                known.tunings,
                known.alternatives,
                known.costs,
                known.savings(),
                surcharges=self._surcharges(),
                met=met,
                calls=calls,
                earlier=known.earlier,
            )

    def _surcharges(self) -> dict[str, float]:
        """Return the seconds that the policy adds to the trials of alternatives."""
        return dict(getattr(self._knowledge.choice.current(), "handicaps", ()))

    def chosen(self, problem: Hashable) -> str | None:
        """Return the name of the alternative that is chosen for a problem at present.

        `problem` is what `get_problem_size` returns. The result is None if the problem has no
        decision: it was never met, its search goes on, or its winner has failed or drifted.
        """
        decision = self._knowledge.decisions.get(problem)
        return None if decision is None else decision.alternative

    def ordered(self, problem: Hashable) -> str | None:
        """Return the alternative that BESTOF_FORCE or a pin orders for a problem; None without one.

        `problem` is what `get_problem_size` returns.
        """
        order = forced(self.name, self.alternative_names)
        order = order or self._knowledge.stored.pinned(canonical(problem))
        return None if order is None else order.alternative

    def follows(self, alternative: str) -> bool:
        """Return whether a policy of the process that fixes this alternative holds here."""
        return alternative in self.alternative_names and self._knowledge.choice.follows_process

    @property
    def budget(self) -> float | None:
        """The share of the time that trials may cost; None for no bound. It may be set."""
        return self._knowledge.costs.share

    @budget.setter
    def budget(self, share: float | None) -> None:
        self._knowledge.costs.share = parse_share(share, f"BestOf({self.name!r}): budget")

    @property
    def trials(self) -> int:
        """The number of timed calls."""
        return self._knowledge.costs.trials

    @property
    def decided(self) -> int:
        """The number of problems in memory for which one of several alternatives was chosen."""
        decisions = entries(self._knowledge.decisions)
        return sum(decision.source != "only" for _, decision in decisions)

    @property
    def trial_seconds(self) -> float:
        """The seconds that the timed calls took."""
        return self._knowledge.costs.trial_seconds

    @property
    def loss_seconds(self) -> float:
        """The part of `trial_seconds` that calls of the chosen alternatives would have saved."""
        return self._knowledge.costs.loss_seconds

    @property
    def settled_calls(self) -> int:
        """The number of calls that went straight to a winner, including those that raised."""
        return self._knowledge.savings().calls

    @property
    def saved_seconds(self) -> float:
        """An estimate of the seconds that these calls saved against the first alternative."""
        return self._knowledge.savings().seconds

    def course(self) -> list[tuple[float, int, float]]:
        """Return when each decision was made, by `time.perf_counter`, and the number of trials and
        their seconds until then. The oldest decisions are forgotten first.
        """
        with self._knowledge.lock:
            return list(self._knowledge.costs.course)

    def flush(self) -> None:
        """Save the evidence of unsettled problems, so that the next run continues with it."""
        self._knowledge.flush()

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem again, as another rank of the job does.

        Return false if the problem is not settled here.
        """
        return self._watch.race_again(problem)

    def give_up(self, problem: Hashable, reason: str) -> bool:
        """Disqualify the chosen alternative of a problem, which has failed, and search without it.

        Return false if the problem is not settled, or if no other alternative remains.
        """
        return self._watch.give_up(problem, reason)

    def after_fork(self) -> None:
        """Prepare for a child process: drop what threads of the parent have begun."""
        self._knowledge.after_fork()

    def asked_store(self) -> Store | None:
        """Return the store, or None if this selector has met no problem yet."""
        return self._knowledge.asked_store()

    def meet_lock(self, lock: Lock) -> None:
        """Let the lock of the process count its records that fit these alternatives."""
        lock.meet(self.name, self._knowledge.alternatives)

    def print_as_table(self) -> None:
        """Print the report."""
        print(self.report())

    @staticmethod
    def print_report() -> None:
        """Print the reports of every selector of the process."""
        print(report_all())

    def best_method_has_been_found(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether a problem is settled. Takes the arguments of `explain`."""
        return (
            self._problem("best_method_has_been_found", args, kwargs) in self._knowledge.decisions
        )

    def __repr__(self) -> str:
        names = ", ".join(alternative.name for alternative in self._knowledge.alternatives)
        settled = len(self._knowledge.decisions)
        return f"<BestOf {self.name!r} of {names}; {settled} problem{'s' * (settled != 1)} settled>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: what was chosen for each problem."""
        return self.report()._repr_html_()

    def _problem(self, asked: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        try:
            problem = self.get_problem_size(*args, **kwargs)
        except Exception as error:
            reraise_from_outside()
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
        return remade(type(self), BestOf, self._arguments(), *self._brought())

    def __deepcopy__(self, memo: dict[int, Any]) -> BestOf:
        made = type(self).__new__(type(self))
        # First: an alternative may be a method of an object that holds this selector.
        memo[id(self)] = made
        for shared in ("policy", "store", "clock", "on_event", "timer"):
            memo.setdefault(id(self._given[shared]), self._given[shared])
        beside, taught = self._brought()
        return fill(
            made,
            BestOf,
            copy.deepcopy(self._arguments(), memo),
            copy.deepcopy(beside, memo),
            taught,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (remade, (type(self), BestOf, self._arguments(), *self._brought()))

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments for a copy; a program may have replaced the problem function."""
        return {**self._given, "get_problem_size": self.get_problem_size}

    def _brought(self) -> tuple[Beside, list[Teaching]]:
        """Return what a copy takes over: attributes that a program has set, and the decisions."""
        attributes = {
            name: value for name, value in vars(self).items() if name not in self._made_of
        }
        slots = {
            name: getattr(self, name)
            for name in own_slots(type(self), BestOf)
            if hasattr(self, name)
        }
        return (attributes, slots), teachings(self._knowledge)


def _signature(function: Callable[..., Hashable]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):  # a compiled function may have none
        return "(...)"
