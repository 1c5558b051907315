"""One call of an unsettled problem: run an alternative, time it, and if it fails, run another
one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from types import CoroutineType
from typing import Any

from bestof.errors import NoAlternative
from bestof.selection.call.comparison import Comparison
from bestof.selection.call.failure import (
    comes_from_within,
    disqualify_failed,
    reasons_of,
    unanswered,
    warn_disqualified,
)
from bestof.selection.call.guard import Guard
from bestof.selection.call.reference import UNKNOWN, Reference
from bestof.selection.hot_path import timed
from bestof.selection.interrupts import comes_from_outside, registered_handlers
from bestof.selection.passes import Pass
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.tuning import Tuning
from bestof.selection.trials.circumstances import told
from bestof.selection.trials.crowd import LEAST
from bestof.selection.trials.timer import Timing
from bestof.selection.trials.trial import Trial, current_trial, detours, timed_later
from bestof.selection.trials.verifier import Verdict, Verifier

_NO_FAILURES: dict[int, Exception] = {}  # shared by all attempts without a failure; never changed


class Attempt(Trial):
    """Answers one call of an unsettled problem.

    It is also the trial of the alternative that it runs first, which saves one object per call.
    `begun` is the pass of the call. `timed` is false if the time is no evidence. `settled` is true
    if the alternative for this call is decided: then a trial around this call may still count.
    """

    __slots__ = (
        "admitted",
        "begun",
        "failures",
        "guard",
        "knowledge",
        "settled",
        "stage",
        "started",
        "timed",
        "timing",
        "tuning",
    )

    def __init__(
        self,
        knowledge: Knowledge,
        guard: Guard,
        tuning: Tuning,
        stage: int,
        position: int,
        begun: Pass | None,
        timed: bool,
        parent: Trial | None,
        settled: bool,
    ) -> None:
        # The attributes of Trial are set here: calling its constructor costs 5 % of a trial.
        self.owner = self.knowledge = knowledge
        self.guard = guard
        self.problem = tuning.problem
        self.position = position
        self.parent = parent
        self.clean = True
        self.done = False
        self.children = None
        self.unanswered = ()
        self.waited = self.apart = 0.0
        self.tuning = tuning
        self.stage = stage
        self.begun = begun
        self.timed = timed
        self.timing: Timing | None = None  # if the time is known later
        self.settled = settled
        self.failures: dict[int, Exception] = _NO_FAILURES
        self.admitted: tuple[int, ...] = ()  # left out as unpromising, until all others failed

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the first alternative that succeeds, or an awaitable of it."""
        knowledge = self.knowledge
        if self.parent is not None:
            self.parent.meets(knowledge.name, self.problem, settled=self.settled)
        undo: Callable[[], object] | None = None
        compared: Comparison | None = None
        verifier, expected = self.guard.verifier, UNKNOWN
        compares = knowledge.budget.is_on and self.guard.check is not None
        self.started = self.guard.clock() if compares or verifier is not None else 0.0
        if self.guard.restore is not None:
            undo = self.guard.undo(knowledge.name, args, kwargs)
        if self.guard.check is not None:
            compared = self._compared(args, kwargs, undo)
        elif verifier is not None:
            expected = self._expected_by_verifier(verifier, args)
            if type(expected) is Verdict:  # the alternative must not run now
                self._abandon()
                return expected.answer
        function = self.tuning.candidates[self.position].stages[self.stage]
        clock, late = self.guard.clock, self.guard.late
        if compares:
            knowledge.budget.book(clock() - self.started)
        if late is not None and self.timed:
            self.timing = late.start(args)
            self.timed = self.timing is not None
        watched = self.timed and late is None and self.tuning.least > LEAST
        before = knowledge.costs.watch(self.tuning) if watched else None
        failure: Exception | None = None
        handlers = registered_handlers()
        try:
            seconds, result = timed(detours, current_trial, self, clock, function, args, kwargs)
        except BaseException as error:
            if not isinstance(error, Exception) or comes_from_outside(error, handlers):
                self._abandon()
                raise
            failure = error
        if late is not None and self.timing is not None and failure is None:
            # A coroutine starts its work on the device only when it is awaited.
            self.timing = None if type(result) is CoroutineType else late.stop(self.timing)
            self.timed = self.timing is not None
        if failure is None:
            seconds = knowledge.costs.own_seconds(self, seconds, before)
            if type(result) is CoroutineType:
                return self.awaited(result, undo, compared, args, kwargs)
            if verifier is not None and expected is not UNKNOWN:
                return self._verified(verifier, seconds, result, expected, args)
            if compared is None:
                self._tell(self, seconds, None)
                return result
            return self._accept(self, seconds, result, undo, compared, args, kwargs)
        if compared is not None:
            undo = undo or compared.put_back
            if type(compared.expected) is CoroutineType:
                compared.expected.close()
        if verifier is not None and expected is not UNKNOWN:
            verifier.put_back(expected)
        return self.turn_to_another(self, failure, undo).run(args, kwargs)

    async def awaited(
        self,
        coroutine: CoroutineType[Any, Any, Any],
        undo: Callable[[], object] | None,
        compared: Comparison | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Await an alternative that is a coroutine, as its trial, and return what it gives."""
        knowledge = self.knowledge
        if compared is not None and type(compared.expected) is CoroutineType:
            await self._expected_later(compared, undo)
        trial = Trial(knowledge, self.tuning.problem, self.position, self.parent)
        failure: Exception | None = None
        handlers = registered_handlers()
        try:
            seconds, result = await timed_later(trial, self.guard.clock, coroutine)
        except BaseException as error:
            if not isinstance(error, Exception) or comes_from_outside(error, handlers):
                self._abandon()
                raise
            failure = error
        if failure is None:
            seconds = knowledge.costs.own_seconds(trial, seconds, None)
            answer = self._accept(trial, seconds, result, undo, compared, args, kwargs)
            return await answer if type(answer) is CoroutineType else answer
        if compared is not None:
            undo = undo or compared.put_back
        again = self.turn_to_another(trial, failure, undo).run(args, kwargs)
        return await again if type(again) is CoroutineType else again

    def _compared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], undo: Callable[[], object] | None
    ) -> Comparison | None:
        """Call the first alternative with the same arguments, to compare with it.

        Return None if no comparison is due: each stage of an alternative is compared once.
        """
        reference = self.tuning.remaining()[0]
        if reference in self.failures or self.position == reference:
            return None
        candidate = self.tuning.candidates[self.position]
        if self.stage in candidate.trusted or reference in self._positions_above():
            return None  # compared before, or the call came from the reference
        self._pollute()
        compared = Comparison(self.guard, args, kwargs)
        trial = Reference(self.knowledge, self.tuning.problem, reference, self.parent)
        function = self.tuning.candidates[reference].stages[self.stage]
        try:
            expected = trial.call(function, args, kwargs)
        except BaseException:
            self._abandon()
            raise
        if type(expected) is CoroutineType:
            compared.expected = expected
        else:
            self._take(trial, compared, expected, undo)
        return compared

    def _expected_by_verifier(self, verifier: Verifier, args: tuple[Any, ...]) -> Any:
        """Return what the verifier compares with; UNKNOWN if this stage needs no comparison."""
        candidate = self.tuning.candidates[self.position]
        if self.stage in candidate.trusted:
            return UNKNOWN
        trusted = verifier.trusts(candidate.alternative.name)
        if trusted and not (self.timed and self.knowledge.costs.may_compare()):
            return UNKNOWN
        if not trusted:
            self._pollute()
        handlers = registered_handlers()
        try:
            if self.guard.late is not None:
                verifier.wait(self.stage, args)
                self.started = self.guard.clock()
            if not trusted:
                return verifier.expect(self.stage, args)
            expected = verifier.expect_of_trusted(self.stage, args)
            if expected is None:
                return UNKNOWN
            self._pollute()
            return expected
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, Exception) and not comes_from_outside(error, handlers):
                # Memory is short, say. The caller then runs the operation without a selector.
                where = self.knowledge.where(self.tuning.problem)
                raise NoAlternative(f"{where}: nothing to compare with: {told(error)}") from error
            raise

    def _verified(
        self,
        verifier: Verifier,
        seconds: float,
        result: Any,
        expected: Any,
        args: tuple[Any, ...],
    ) -> Any:
        """Let the verifier compare a result, book the call, and return what answers it."""
        candidate = self.tuning.candidates[self.position]
        try:
            verdict = verifier.judge(candidate.alternative.name, self.stage, args, expected, result)
        except BaseException:
            self._abandon()
            raise
        waited = self.guard.clock() - self.started
        trusted = verifier.trusts(candidate.alternative.name)
        # The time of a late trial is that of its device. The program has waited here for the
        # device, and for all that a library does before its first call.
        cost = waited - self.apart - (seconds if self.guard.late is None else 0.0)
        of_a_stage = self.knowledge.grouped and self.guard.late is None
        call = seconds if of_a_stage or self.tuning.least == inf else self.tuning.least
        self.knowledge.costs.compared(cost, call, trusted=trusted)
        if verdict.wrong is not None:
            self.withdraw()
        elif verdict.tells:
            candidate.trusted.add(self.stage)
        self._tell(self, seconds, verdict.wrong, verdict.reference_wrong)
        return verdict.answer

    async def _expected_later(
        self, compared: Comparison, undo: Callable[[], object] | None
    ) -> None:
        """Await the coroutine of the first alternative."""
        reference = self.tuning.remaining()[0]
        trial = Reference(self.knowledge, self.tuning.problem, reference, self.parent)
        try:
            expected = await trial.wait(compared.expected)
        except BaseException:
            self._abandon()
            raise
        self._take(trial, compared, expected, undo)

    def _take(
        self,
        reference: Reference,
        compared: Comparison,
        expected: Any,
        undo: Callable[[], object] | None,
    ) -> None:
        """Take the result of the reference, and put the arguments back.

        Raise the error of the reference if the whole call must end with it.
        """
        if reference.failure is not None:
            self.failures = {**self.failures, reference.position: reference.failure}
            if comes_from_within(reference.failure, reference, self.knowledge):
                self._give_up(reference.failure)
                raise reference.failure
        compared.take(expected, restores=undo is not None)
        if undo is not None:
            undo()

    def turn_to_another(
        self, trial: Trial, failure: Exception, undo: Callable[[], object] | None
    ) -> Attempt:
        """Return an attempt with the next alternative after a failure of `trial`.

        Raise if no alternative is left. The attempt is a new one, because tasks begun inside this
        one may still hold it as their trial.
        """
        self._pollute()
        self.failures = {**self.failures, self.position: failure}
        candidate = self.tuning.candidates[self.position]
        if undo is not None:
            undo()
        changed = undo is None and candidate.alternative.mutates
        if changed or comes_from_within(failure, trial, self.knowledge):
            self._give_up(failure)
            raise failure
        above = self._positions_above()
        others = [p for p in self.tuning.remaining() if p not in self.failures and p not in above]
        decision = self.tuning.decision
        if decision is not None and decision.position in others:
            others = [decision.position]
        admitted = self.admitted
        if not others:
            with self.knowledge.lock:
                another = self.tuning.admit_another(above)
            if another is not None:
                others, admitted = [another], (*admitted, another)
        if not others:
            where = self.knowledge.where(self.tuning.problem)
            error = unanswered(where, self.tuning, self.failures)
            self._give_up(error)
            raise error from None if error in self.failures.values() else failure
        if self.begun is not None and self.stage == 0:
            self.begun.position = others[0]
        else:
            self.withdraw()  # stages of two alternatives are not one pass
        other = Attempt(
            self.knowledge,
            self.guard,
            self.tuning,
            self.stage,
            others[0],
            self.begun,
            self.timed,
            self.parent,
            self.settled,
        )
        other.failures, other.admitted = self.failures, admitted
        return other

    def _positions_above(self) -> set[int]:
        """Return the alternatives of this problem whose trials this call runs inside."""
        if self.parent is None:
            return set()
        return self.parent.positions_above(self.knowledge, self.tuning.problem)

    def _abandon(self) -> None:
        """Drop the pass of a call that no alternative answers, and leave out again what it
        admitted."""
        self.withdraw()
        if self.admitted:
            refused = self.knowledge.refused
            with self.knowledge.lock:
                self.tuning.dismiss({position: refused[position] for position in self.admitted})

    def _give_up(self, error: BaseException) -> None:
        """End the call with this error, and tell the trial around it."""
        self._abandon()
        if self.parent is not None:
            self.parent.could_not_answer(self.knowledge, error)

    def _pollute(self) -> None:
        """Make the time of the trial around this call not count."""
        if self.parent is not None:
            self.parent.clean = False

    def withdraw(self) -> None:
        """Drop the pass of this call."""
        with self.knowledge.lock:
            if self.begun is not None:
                self.tuning.passes.withdraw(self.begun)
        self.begun = None

    def _accept(
        self,
        trial: Trial,
        seconds: float,
        result: Any,
        undo: Callable[[], object] | None,
        compared: Comparison | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compare a result with the expected one, book the call, and return what answers it."""
        if compared is None or compared.expected is UNKNOWN:
            self._tell(trial, seconds, None)
            return result
        wrong = compared.fault(result)
        if wrong is None:
            self.tuning.candidates[self.position].trusted.add(self.stage)
            self._tell(trial, seconds, None)
            return result
        # The arguments must end as the first alternative leaves them.
        (undo or compared.put_back)()
        expected = compared.expected
        if undo is not None or compared.changes_arguments:
            reference = self.tuning.remaining()[0]
            expected = self.tuning.candidates[reference].stages[self.stage](*args, **kwargs)
        self.withdraw()
        self._tell(trial, seconds, wrong)
        return expected

    def _tell(
        self,
        trial: Trial,
        seconds: float,
        wrong: str | None,
        reference_wrong: str | None = None,
    ) -> None:
        """Book one answered call: its failures, its time, and the choices inside it.

        `wrong` says in what way the result was wrong, `reference_wrong` in what way the first
        alternative's was.
        """
        if not trial.clean:
            self._pollute()
        knowledge, tuning = self.knowledge, self.tuning
        disqualified = None
        with knowledge.lock:
            if wrong is not None or reference_wrong is not None or self.failures:
                reasons = reasons_of(self.failures, self.position, wrong)
                if reference_wrong is not None:
                    reasons.setdefault(0, f"wrong result: {reference_wrong}")
                disqualified = disqualify_failed(knowledge, tuning, reasons)
            if wrong is not None:
                knowledge.conclude(tuning)
            else:
                if tuning.unverified:
                    # Stages of which results must be compared; a verifier sees each of them.
                    left = knowledge.uncompared(tuning, self.position)
                    if self.stage not in left:
                        tuning.answered(self.stage, left if self.guard.verifier is not None else ())
                self._book(trial, seconds)
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        if disqualified:
            warn_disqualified(knowledge.where(tuning.problem), disqualified)

    def _book(self, trial: Trial, seconds: float) -> None:
        if self.timing is not None and self.guard.late is not None:
            if self.timed and self.tuning.decision is None:
                self.guard.late.wait(self, self.tuning, self.timing)
            return
        # Without its pass, the time of a stage is no evidence.
        counts = self.timed and (self.begun is not None or not self.knowledge.grouped)
        self.knowledge.book(
            self.tuning, trial, self.begun, self.stage, self.position, seconds, counts
        )

    def book_late(self, seconds: float) -> None:
        """Book the late time of a trial that has ended. Called with the lock held."""
        self.timing = None
        self._book(self, seconds)
