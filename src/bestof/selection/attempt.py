"""One call of an unsettled problem: run an alternative under guard and clock, and answer by another
where it fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from contextvars import Token
from types import CoroutineType
from typing import Any

from bestof.errors import InvalidArgument, NoAlternative, WrongResult
from bestof.selection.circumstances import circumstances, raised, told
from bestof.selection.group_pass import Pass
from bestof.selection.guard import Guard, compare
from bestof.selection.journal import DisqualificationEntry
from bestof.selection.knowledge import Knowledge
from bestof.selection.notice import warn
from bestof.selection.timer import Timing
from bestof.selection.trial import Trial, current_trial, detours, leave_trial
from bestof.selection.tuning import Tuning

UNKNOWN = object()
_LINKS = (
    8  # of a chain of exceptions: a function may raise an error of its own from the one that it met
)
_NO_FAILURES: dict[int, Exception] = {}  # of every attempt until something fails: never changed


class Attempt(Trial):
    """Answers one call, and is the trial of the alternative that it runs first: one object fewer in
    every trial.

    `timed` is false where the time says nothing; `begun` is the pass that the call belongs to;
    `settled`: who answers is known, so that a trial around this call may count.
    """

    __slots__ = (
        "begun",
        "failures",
        "guard",
        "knowledge",
        "settled",
        "stage",
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
        # Those of Trial, not by its constructor: the call would cost a twentieth of a trial.
        self.owner = self.knowledge = knowledge
        self.guard = guard
        self.problem = tuning.problem
        self.position = position
        self.parent = parent
        self.clean = True
        self.done = False
        self.children = None
        self.unanswered = ()
        self.tuning = tuning
        self.stage = stage
        self.begun = begun
        self.timed = timed
        self.timing: Timing | None = None  # where the time is known later
        self.settled = settled
        self.failures: dict[int, Exception] = _NO_FAILURES

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the first alternative that gives one; an awaitable, where alternatives are
        coroutines."""
        knowledge = self.knowledge
        if self.parent is not None:
            self.parent.meets(knowledge.name, self.problem, settled=self.settled)
        undo: Callable[[], object] | None = None
        expected = UNKNOWN
        if self.guard.restore is not None:
            undo = self._undo(args, kwargs)
        if self.guard.check is not None:
            expected = self._expected(args, kwargs, undo)
        function = self.tuning.candidates[self.position].stages[self.stage]
        clock, late = self.guard.clock, self.guard.late
        if late is not None and self.timed:
            self.timing = late.start(args)
            self.timed = self.timing is not None
        token: Token[Trial | None] | None = None
        failure: Exception | None = None
        try:  # what an interrupt finds begun is ended
            token = current_trial.set(self)
            detours.append(self)
            started = clock()
            result = function(*args, **kwargs)
            seconds = clock() - started
        except Exception as error:
            failure = error
        except BaseException:
            self._withdraw()
            raise
        finally:
            leave_trial(self, token)
        if late is not None and self.timing is not None and failure is None:
            # What a coroutine orders, it orders after this.
            self.timing = None if type(result) is CoroutineType else late.stop(self.timing)
            self.timed = self.timing is not None
        if failure is None:
            if type(result) is CoroutineType:
                return self._awaited(result, undo, expected, args, kwargs)
            if expected is UNKNOWN:
                self._tell(self, seconds, None)
                return result
            return self._accept(self, seconds, result, undo, expected, args, kwargs)
        if type(expected) is CoroutineType:
            expected.close()
        return self._turn_to_another(self, failure, undo).run(args, kwargs)

    async def _awaited(
        self,
        coroutine: CoroutineType[Any, Any, Any],
        undo: Callable[[], object] | None,
        expected: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        knowledge = self.knowledge
        if type(expected) is CoroutineType:
            expected = await self._expected_later(expected, undo)
        trial = Trial(knowledge, self.tuning.problem, self.position, self.parent)
        token: Token[Trial | None] | None = None
        failure: Exception | None = None
        try:
            token = current_trial.set(trial)
            detours.append(trial)
            started = self.guard.clock()
            result = await coroutine
            seconds = self.guard.clock() - started
        except Exception as error:
            failure = error
        except BaseException:
            self._withdraw()
            raise
        finally:
            leave_trial(trial, token)
        if failure is None:
            answer = self._accept(trial, seconds, result, undo, expected, args, kwargs)
            return await answer if type(answer) is CoroutineType else answer
        again = self._turn_to_another(trial, failure, undo).run(args, kwargs)
        return await again if type(again) is CoroutineType else again

    def _expected(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], undo: Callable[[], object] | None
    ) -> Any:
        """The first alternative's result on the same arguments, for the first trial of each other
        one."""
        reference = self.tuning.remaining()[0]
        if reference in self.failures or self.position == reference:
            return UNKNOWN
        if self.stage in self.tuning.candidates[self.position].trusted:
            return UNKNOWN
        if self.parent is not None and reference in self.parent.positions_above(
            self.knowledge, self.tuning.problem
        ):
            return UNKNOWN  # the call came from the reference
        self._pollute()
        trial = self._reference_trial(reference)
        token: Token[Trial | None] | None = None
        expected = UNKNOWN
        try:
            token = current_trial.set(trial)
            detours.append(trial)
            expected = self.tuning.candidates[reference].stages[self.stage](*args, **kwargs)
        except Exception as error:
            self.failures = {**self.failures, reference: error}
            if self._comes_from_within(trial, error):
                self._give_up(error)
                raise
        except BaseException:
            self._withdraw()
            raise
        finally:
            leave_trial(trial, token)
        return expected if type(expected) is CoroutineType else self._own(expected, undo)

    async def _expected_later(
        self, coroutine: CoroutineType[Any, Any, Any], undo: Callable[[], object] | None
    ) -> Any:
        reference = self.tuning.remaining()[0]
        trial = self._reference_trial(reference)
        token: Token[Trial | None] | None = None
        expected = UNKNOWN
        try:
            token = current_trial.set(trial)
            detours.append(trial)
            expected = await coroutine
        except Exception as error:
            self.failures = {**self.failures, reference: error}
            if self._comes_from_within(trial, error):
                self._give_up(error)
                raise
        except BaseException:
            self._withdraw()
            raise
        finally:
            leave_trial(trial, token)
        return self._own(expected, undo)

    def _reference_trial(self, reference: int) -> Trial:
        """A trial that nobody waits for: a choice inside the reference is no child of what is tried
        or of the caller, but the reference must not be tried again inside itself."""
        return Trial(self.knowledge, self.tuning.problem, reference, self.parent)

    def _own(self, expected: Any, undo: Callable[[], object] | None) -> Any:
        """The reference's result, safe from what is done to the arguments next: it may be one of
        them."""
        if undo is not None:
            if expected is not UNKNOWN:
                with suppress(
                    Exception
                ):  # what has no copy that passes for it is compared as it is
                    duplicate = copy.deepcopy(expected)
                    compare(self.guard.check, expected, duplicate)
                    expected = duplicate
            undo()
        return expected

    def _undo(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
        restore = self.guard.restore
        assert restore is not None
        undo = restore(*args, **kwargs)
        if not callable(undo):
            raise InvalidArgument(
                f"BestOf({self.knowledge.name!r}): restore: expected to get a function that puts "
                f"the arguments back; got {type(undo).__name__}"
            )
        return undo

    def _turn_to_another(
        self, trial: Trial, failure: Exception, undo: Callable[[], object] | None
    ) -> Attempt:
        """Return the attempt of the next alternative after a failure of `trial`; raise if no
        alternative is left.

        It is a new attempt: the trial of this one is over, and tasks begun inside it may still
        carry it.
        """
        self._pollute()
        self.failures = {**self.failures, self.position: failure}
        candidate = self.tuning.candidates[self.position]
        if undo is not None:
            undo()
        if self._comes_from_within(trial, failure) or (
            undo is None and candidate.alternative.mutates
        ):
            self._give_up(failure)
            raise failure
        above = (
            self.parent.positions_above(self.knowledge, self.tuning.problem)
            if self.parent is not None
            else set()
        )
        others = [p for p in self.tuning.remaining() if p not in self.failures and p not in above]
        decision = self.tuning.decision
        if decision is not None and decision.position in others:
            others = [decision.position]
        if not others:
            unanswered = self._unanswered()
            self._give_up(unanswered)
            raise unanswered from None if unanswered in self.failures.values() else failure
        if self.begun is not None and self.stage == 0:
            self.begun.position = others[0]
        else:
            self._withdraw()  # the stages of two alternatives make no pass
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
        other.failures = self.failures
        return other

    def _comes_from_within(self, trial: Trial, failure: BaseException) -> bool:
        """Return whether a call of this selector inside the trial could not be answered either, and
        that is why.

        The other alternatives would call the selector again in turn: two to the power of the depth
        calls for one error.
        """
        if (
            isinstance(failure, RecursionError)
            and self.parent is not None
            and self.parent.has_above(self.knowledge)
        ):
            return True
        error: BaseException | None = failure
        for _ in range(_LINKS if trial.unanswered else 0):
            if error is None:
                return False
            if any(error is one for one in trial.unanswered):
                return True
            error = error.__cause__ or error.__context__
        return False

    def _give_up(self, error: BaseException) -> None:
        """The call ends with this error: its pass is over, and a call around it by the same
        selector ends too."""
        self._withdraw()
        if self.parent is not None:
            self.parent.could_not_answer(self.knowledge, error)

    def _pollute(self) -> None:
        """What takes time here is none of the trial around."""
        if self.parent is not None:
            self.parent.clean = False

    def _withdraw(self) -> None:
        with self.knowledge.lock:
            if self.begun is not None:
                self.tuning.passes.withdraw(self.begun)
        self.begun = None

    def _unanswered(self) -> Exception:
        """The error of a call that no alternative answered. Where all fail alike, the call itself
        is at fault, and the program gets the error that it would get without a knowledge. Nothing
        is held against the alternatives."""
        names = {p: self.tuning.candidates[p].alternative.name for p in self.failures}
        first = self.failures[min(self.failures)]
        reasons = "; ".join(f"{names[p]}: {told(self.failures[p])}" for p in sorted(self.failures))
        if len({type(error) for error in self.failures.values()}) == 1:
            if len({str(error) for error in self.failures.values()}) > 1 and hasattr(
                first, "add_note"
            ):  # Python 3.11
                first.add_note(
                    f"{self.knowledge.where(self.tuning.problem)}: every alternative failed: "
                    f"{reasons}"
                )
            return first
        return NoAlternative(
            f"{self.knowledge.where(self.tuning.problem)}: every alternative failed: {reasons}",
            {names[p]: error for p, error in sorted(self.failures.items())},
        )

    def _accept(
        self,
        trial: Trial,
        seconds: float,
        result: Any,
        undo: Callable[[], object] | None,
        expected: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        candidate = self.tuning.candidates[self.position]
        wrong = None
        if expected is not UNKNOWN:
            try:
                compare(self.guard.check, expected, result)
                candidate.trusted.add(self.stage)
            except WrongResult as error:
                wrong = str(error)
            except Exception as error:
                wrong = f"check raised {told(error)}"
        if wrong is not None:
            if undo is not None:  # the arguments must show what the first alternative makes of them
                undo()
                reference = self.tuning.remaining()[0]
                expected = self.tuning.candidates[reference].stages[self.stage](*args, **kwargs)
            self._withdraw()
        self._tell(trial, seconds, wrong)
        return result if wrong is None else expected

    def _tell(self, trial: Trial, seconds: float, wrong: str | None) -> None:
        """Book one answered call: what failed on the way, what it took, what was met inside."""
        if not trial.clean:
            self._pollute()
        knowledge, tuning = self.knowledge, self.tuning
        disqualified = None
        with knowledge.lock:
            if wrong is not None or self.failures:
                disqualified = self._take_out(wrong)
            if wrong is not None:
                knowledge.conclude(tuning)
            else:
                if tuning.unverified:
                    tuning.answered(self.stage)
                self._book(trial, seconds)
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        if disqualified is not None:
            self._warn(disqualified)

    def _take_out(self, wrong: str | None) -> dict[str, str]:
        """Disqualify what failed on the way. Return the reasons by name, without those that an
        earlier process told."""
        knowledge, tuning = self.knowledge, self.tuning
        reasons = {position: raised(error) for position, error in self.failures.items()}
        if wrong is not None:
            reasons[self.position] = f"wrong result: {wrong}"
        disqualified = {}
        for position, reason in reasons.items():
            candidate, is_news = (
                tuning.candidates[position],
                not tuning.failed_before(position, reason),
            )
            if not tuning.disqualify(position, reason):
                continue
            candidate.circumstances = circumstances()
            name = candidate.alternative.name
            if is_news:
                disqualified[name] = reason
            knowledge.journal.add(DisqualificationEntry(tuning.problem, name, reason))
            if tuning.decision is not None and tuning.decision.position == position:
                knowledge.reopen(tuning)
        return disqualified

    def _warn(self, disqualified: dict[str, str]) -> None:
        for name, reason in disqualified.items():
            warn(
                f"{self.knowledge.where(self.tuning.problem)}: alternative {name!r} was "
                f"disqualified: {reason}; another one answered the call"
            )

    def _book(self, trial: Trial, seconds: float) -> None:
        if self.timing is not None and self.guard.late is not None:
            if self.timed and self.tuning.decision is None:
                self.guard.late.wait(self, self.tuning, self.timing)
            return
        self.knowledge.book(
            self.tuning, trial, self.begun, self.stage, self.position, seconds, self._counts()
        )

    def _counts(self) -> bool:
        """Whether the time is evidence: that of a stage whose pass nobody knows is none."""
        return self.timed and (self.begun is not None or not self.knowledge.grouped)

    def book_late(self, seconds: float) -> None:
        """Book the time of a trial that ended before, now that it is known. Called with the lock
        held."""
        self.timing = None
        self._book(self, seconds)
