"""The long way of a call: choose the alternative that answers it, and book its time.

If the problem is settled, the winner is called. Otherwise: policy.ask, guard, clock, run,
policy.tell, journal, and if the policy has a winner, decision and store.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import CoroutineType
from typing import Any

from bestof.errors import NoAlternative
from bestof.selection.call.attempt import Attempt
from bestof.selection.call.guard import Guard
from bestof.selection.call.new_problem import NewProblems
from bestof.selection.hot_path import timed
from bestof.selection.identity.alternative import Function
from bestof.selection.interrupts import comes_from_outside, registered_handlers
from bestof.selection.passes import Pass, PythonWinner
from bestof.selection.state import registry
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.tuning import Tuning
from bestof.selection.trials.crowd import LEAST
from bestof.selection.trials.trial import (
    Trial,
    call_inside,
    current_trial,
    detours,
    innermost_trial,
)


class Chooser:
    """Answers the calls that the hot path cannot answer.

    Most of these are plain trials, in which nothing is checked or restored. `_try` runs them, in
    two thirds of the time of an `Attempt`. An `Attempt` answers every other call. `Knowledge.book`
    books both. Alternatives, listeners and warnings run without the lock.
    """

    __slots__ = ("_guard", "_knowledge", "_new_problems", "_plain")

    def __init__(self, knowledge: Knowledge, guard: Guard, new_problems: NewProblems) -> None:
        self._knowledge = knowledge
        self._guard = guard
        self._new_problems = new_problems
        self._plain = guard.is_plain

    def answer(
        self, problem: Hashable, stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer one call of an unsettled problem, or one inside a trial."""
        knowledge = self._knowledge
        if registry.Defaults.first_only:
            return knowledge.functions[0][stage](*args, **kwargs)
        parent = current_trial.get()
        if parent is not None and parent.done:
            parent = innermost_trial()
        tuning = knowledge.tunings.get(problem)
        if tuning is not None:
            position = tuning.asked
            if (
                position is not None
                and knowledge.costs.may_try(tuning, position)
                and (
                    parent is None
                    or (parent.parent is None and parent.owner is not knowledge)
                    or not parent.has_above(knowledge)
                )
            ):
                return self._try(tuning, 0, position, None, parent, args, kwargs)
        winner: PythonWinner | None = None
        function: Function | None = None
        attempt: Attempt | None = None
        position = None  # not None: the position of a plain trial
        begun: Pass | None = None  # the pass of the plain trial
        unopened: int | None = None  # what answers a problem that waits for a search
        # Use `with`: between `acquire` and `try`, an interrupt would leave the lock held for ever.
        with knowledge.lock:
            winner, tuning, unopened = self._find(problem, stage, parent)
            if winner is not None:
                function = (
                    self._stage_of(winner, stage) if knowledge.grouped else winner.functions[0]
                )
            elif tuning is not None:
                if (
                    self._plain
                    and tuning.decision is None
                    and (parent is None or not parent.has_above(knowledge))
                    and (stage > 0 or knowledge.costs.may_try(tuning))
                ):
                    position, begun = self._next(tuning, stage)
                if position is None:
                    attempt = self._begin(tuning, stage, parent)
        if knowledge.notices:
            knowledge.tell()
        if position is not None and tuning is not None:
            return self._try(tuning, stage, position, begun, parent, args, kwargs)
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        if attempt is not None:
            return attempt.run(args, kwargs)
        if unopened is not None:
            return self._answer_unopened(problem, unopened, stage, parent, args, kwargs)
        assert function is not None
        assert winner is not None
        return self._call(winner, function, problem, stage, parent, args, kwargs)

    def _find(
        self, problem: Hashable, stage: int, parent: Trial | None
    ) -> tuple[PythonWinner | None, Tuning | None, int | None]:
        """Return the winner of a problem, or the search for one, or what answers while it waits.

        Look for a running search first, because its trials are timed and must not wait.
        """
        knowledge = self._knowledge
        tuning = knowledge.tunings.get(problem)
        if tuning is not None and tuning.decision is not None:
            decided = tuning.candidates[tuning.decision.position]
            if not decided.remains:  # an interrupt came between its disqualification and this
                knowledge.reopen(tuning)
        if tuning is not None and not (
            tuning.awaits_store and self._new_problems.may_begin_anew(tuning, stage)
        ):
            return None, tuning, None
        winner = knowledge.winner(problem)
        if winner is None:
            unopened = self._new_problems.answered_unopened(problem, stage)
            if unopened is not None and (
                parent is None or unopened not in parent.positions_above(knowledge, problem)
            ):
                return None, None, unopened
            tuning = self._new_problems.meet(problem)
            winner = knowledge.winner(problem)
        return winner, tuning, None

    def _next(self, tuning: Tuning, stage: int) -> tuple[int | None, Pass | None]:
        """Return the alternative of a plain trial and, for a group, the pass of the call."""
        if stage > 0:
            begun = tuning.passes.take(stage)
            return tuning.orphan() if begun is None else begun.position, begun
        position = tuning.ask()
        if position is None or not self._knowledge.grouped:
            return position, None
        return position, tuning.passes.begin(position, self._knowledge.stage_count, timed=True)

    def _try(
        self,
        tuning: Tuning,
        stage: int,
        position: int,
        begun: Pass | None,
        parent: Trial | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a plain trial. If it fails or gives a coroutine, continue with an Attempt."""
        knowledge, problem = self._knowledge, tuning.problem
        if parent is not None:
            if not getattr(tuning.search, "near_tie", False):
                parent.clean = False
            if parent.children is None:
                parent.children = {(knowledge.name, problem)}
            else:
                parent.children.add((knowledge.name, problem))
        candidate = tuning.candidates[position]
        trial = Trial(knowledge, problem, position, parent)
        failure: Exception | None = None
        handlers = registered_handlers()
        counts = begun.timed if begun is not None else not knowledge.grouped
        before = knowledge.costs.watch(tuning) if tuning.least > LEAST else None
        try:
            seconds, result = timed(
                detours,
                current_trial,
                trial,
                self._guard.clock,
                candidate.stages[stage],
                args,
                kwargs,
            )
        except BaseException as error:
            if not isinstance(error, Exception) or comes_from_outside(error, handlers):
                if begun is not None:
                    with knowledge.lock:
                        tuning.passes.withdraw(begun)
                raise
            failure = error
        if failure is not None or type(result) is CoroutineType:
            attempt = Attempt(
                knowledge, self._guard, tuning, stage, position, begun, counts, parent, False
            )
            if failure is not None:
                return attempt.turn_to_another(trial, failure, None).run(args, kwargs)
            return attempt.awaited(result, None, None, args, kwargs)
        if before is not None or trial.apart:
            seconds = knowledge.costs.own_seconds(trial, seconds, before)
        with knowledge.lock:
            knowledge.book(tuning, trial, begun, stage, position, seconds, counts)
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        return result

    def _begin(self, tuning: Tuning, stage: int, parent: Trial | None) -> Attempt:
        """Begin an attempt. If times come later, first take those that have come."""
        late, knowledge = self._guard.late, self._knowledge
        if late is None:
            return self._attempt(tuning, stage, parent)
        late.harvest(tuning)
        attempt = self._attempt(tuning, stage, parent)
        fault = late.take_fault()
        if fault is not None:
            knowledge.notices.append(
                f"{knowledge.where(tuning.problem)}: its timer raised {type(fault).__name__}: "
                f"{fault}; bestof stops trying alternatives, and calls the best one known for each "
                "unsettled problem"
            )
        return attempt

    def _call(
        self,
        winner: PythonWinner,
        function: Function,
        problem: Hashable,
        stage: int,
        parent: Trial | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function of a winner, as a part of the trial around the call."""
        try:
            if parent is None:
                return function(*args, **kwargs)
            return self._inside(parent, problem, function, args, kwargs)
        except BaseException:
            if self._knowledge.grouped and stage == 0:
                winner.withdraw()  # a first stage that raises begins no pass
            raise

    def _answer_unopened(
        self,
        problem: Hashable,
        position: int,
        stage: int,
        parent: Trial | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call an alternative for a problem that waits for a search. A trial around it is void."""
        if parent is not None:
            parent.meets(self._knowledge.name, problem, settled=False)
        # As a trial, although its time is not taken: the alternative may call this selector again
        # with the same problem.
        trial = Trial(self._knowledge, problem, position, parent)
        return call_inside(trial, self._knowledge.functions[position][stage], args, kwargs)

    def _stage_of(self, winner: PythonWinner, stage: int) -> Function:
        """Return the function for a stage: the winner's, unless its pass is an earlier one."""
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
        return (
            winner.functions[stage]
            if begun is None
            else self._knowledge.functions[begun.position][stage]
        )

    def _inside(
        self,
        parent: Trial,
        problem: Hashable,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a settled winner inside a trial; choices inside it are its own children."""
        parent.meets(self._knowledge.name, problem, settled=True)
        trial = Trial(self._knowledge, problem, -1, parent)
        try:
            return call_inside(trial, function, args, kwargs)
        finally:
            if not trial.clean:
                parent.clean = False
            if trial.children is not None:
                self._adopt(problem, trial.children)

    def _adopt(self, problem: Hashable, children: set[tuple[str, Hashable]]) -> None:
        """Add choices met inside a settled winner to its evidence; its trials may have met none."""
        with self._knowledge.lock:
            decision = self._knowledge.decisions.get(problem)
            if decision is not None:
                self._knowledge.decisions[problem] = decision.adopting(children)

    def _attempt(self, tuning: Tuning, stage: int, parent: Trial | None) -> Attempt:
        """Return an attempt: the alternative that answers this call, and whether its time
        counts."""
        begun = tuning.passes.take(stage) if stage > 0 else None
        decision = tuning.decision
        timed = (stage == 0 and decision is None) if begun is None else begun.timed
        if begun is not None:
            position = begun.position
        elif decision is not None:
            position = decision.position
            if stage == 0 and tuning.retries and not tuning.unverified and parent is None:
                position = self._retry(tuning, decision.position)
        elif stage > 0:  # a stage whose pass was never begun, or was forgotten
            position = tuning.orphan()
        else:
            timed = self._guard.late is None or not self._guard.late.blocks(tuning)
            timed = timed and self._knowledge.costs.may_try(tuning)
            position = self._ask(tuning) if timed else tuning.best_known()
        if stage == 0 and tuning.decision is not None:
            timed = False
            tuning.decided_calls += 1
            self._count_settled_call(tuning)
        settled = tuning.decision is not None or getattr(tuning.search, "near_tie", False)
        above = (
            parent.positions_above(self._knowledge, tuning.problem) if parent is not None else ()
        )
        if position in above:
            # The alternative called this selector again with the same problem: another one must
            # answer.
            tuning.candidates[position].recursive = True
            others = [other for other in tuning.remaining() if other not in above]
            if not others:
                raise NoAlternative(
                    f"{self._knowledge.where(tuning.problem)}: every alternative calls this "
                    "selector again with the very same problem; one of them must answer by "
                    "itself"
                )
            position, begun, timed, settled = others[0], None, False, True
        if self._knowledge.grouped and stage == 0:
            begun = tuning.passes.begin(position, len(self._knowledge.stages[0]), timed=timed)
        return Attempt(
            self._knowledge, self._guard, tuning, stage, position, begun, timed, parent, settled
        )

    def _retry(self, tuning: Tuning, decided: int) -> int:
        """Return the alternative for a call beside the stored decision.

        Each alternative that an earlier process disqualified by an error gets one such call. If its
        error would reach the program, or nothing may be tried at present, the decided alternative
        answers.
        """
        position = tuning.retries.pop(0)
        late = self._guard.late
        alternative = tuning.candidates[position].alternative
        if (alternative.mutates and self._guard.restore is None) or (
            late is not None and late.blocks(tuning)
        ):
            return decided
        tuning.retried.add(position)
        return position

    def _ask(self, tuning: Tuning) -> int:
        asked = tuning.ask()
        if asked is None:
            winner = tuning.winner
            asked = tuning.remaining()[0] if winner is None else winner
            # Three cases lead here. An interrupt kept the last trial from deciding. A window of
            # steps has ended. Or the only alternative that the policy knows was dropped, so nothing
            # was decided.
            decided = winner is not None and not getattr(tuning.search, "cut_off", False)
            measured = decided and tuning.candidates[asked].samples
            source = getattr(tuning.search, "source", None)
            source = source or ("measured" if measured else "forced")
            self._knowledge.settle(tuning, asked, source)
        return asked

    def _count_settled_call(self, tuning: Tuning) -> None:
        """Count a settled call. After `check_every` calls the next result is compared again."""
        assert tuning.decision is not None
        if self._knowledge.check_every is not None:
            tuning.calls += 1
            if tuning.calls >= self._knowledge.check_every:
                tuning.calls = 0
                tuning.candidates[tuning.decision.position].trusted.clear()
