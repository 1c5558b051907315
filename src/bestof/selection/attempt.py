"""One call of an unsettled problem: run an alternative under guard and clock, and answer by another where it fails."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from bestof.errors import BestofWarning, NoAlternative, WrongResult
from bestof.selection.guard import compare
from bestof.selection.journal import DisqualificationEntry
from bestof.selection.trial import Trial, current_trial, detours
from bestof.selection.tuning import Pass, Tuning

if TYPE_CHECKING:
    from bestof.selection.best_of import BestOf

_UNKNOWN = object()


class Attempt:
    """Answers one call. `timed` is false where the time says nothing; `begun` is the pass that the call belongs to."""

    __slots__ = ("begun", "failures", "parent", "position", "selector", "stage", "timed", "tuning")

    def __init__(
        self,
        selector: BestOf,
        tuning: Tuning,
        stage: int,
        position: int,
        begun: Pass | None,
        timed: bool,
        parent: Trial | None,
    ) -> None:
        self.selector = selector
        self.tuning = tuning
        self.stage = stage
        self.position = position
        self.begun = begun
        self.timed = timed
        self.parent = parent
        self.failures: dict[int, Exception] = {}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the first alternative that gives one; an awaitable, where alternatives are coroutines."""
        selector = self.selector
        if self.parent is not None:
            self.parent.meets(selector.name, self.tuning.problem, settled=False)
        while True:
            undo = selector._restore(*args, **kwargs) if selector._restore is not None else None
            expected = self._expected(args, kwargs, undo) if selector._check is not None else _UNKNOWN
            function = self.tuning.candidates[self.position].stages[self.stage]
            clock = selector._clock
            trial = Trial(selector, self.tuning.problem, self.position, self.parent)
            token = current_trial.set(trial)
            detours.append(trial)
            try:
                started = clock()
                result = function(*args, **kwargs)
                seconds = clock() - started
            except Exception as error:
                failure = error
            else:
                if type(result) is CoroutineType:
                    return self._awaited(result, trial, undo, expected, args, kwargs)
                return self._accept(trial, seconds, result, undo, expected, args, kwargs)
            finally:
                current_trial.reset(token)
                detours.remove(trial)
            self._turn_to_another(failure, undo)

    async def _awaited(
        self,
        coroutine: CoroutineType[Any, Any, Any],
        trial: Trial,
        undo: Callable[[], object] | None,
        expected: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        selector = self.selector
        if expected is not _UNKNOWN and type(expected) is CoroutineType:
            expected = await expected
        token = current_trial.set(trial)
        detours.append(trial)
        try:
            started = selector._clock()
            result = await coroutine
            seconds = selector._clock() - started
        except Exception as error:
            failure = error
        else:
            return self._accept(trial, seconds, result, undo, expected, args, kwargs)
        finally:
            current_trial.reset(token)
            detours.remove(trial)
        self._turn_to_another(failure, undo)
        again = self.run(args, kwargs)
        return await again if type(again) is CoroutineType else again

    def _expected(self, args: tuple[Any, ...], kwargs: dict[str, Any], undo: Callable[[], object] | None) -> Any:
        """The first alternative's result on the same arguments, for the first trial of each other one."""
        reference = self.tuning.remaining()[0]
        if reference in self.failures or self.position == reference:
            return _UNKNOWN
        if self.tuning.candidates[self.position].trusted:
            return _UNKNOWN
        # Under a trial of its own, that nobody waits for: a choice inside the reference is no child of the caller.
        token = current_trial.set(Trial(self.selector, self.tuning.problem, reference, None))
        try:
            expected = self.tuning.candidates[reference].stages[self.stage](*args, **kwargs)
        except Exception as error:
            self.failures[reference] = error
            expected = _UNKNOWN
        finally:
            current_trial.reset(token)
        if undo is not None:
            expected = copy.deepcopy(expected)  # it may be the very argument that is put back now
            undo()
        return expected

    def _turn_to_another(self, failure: Exception, undo: Callable[[], object] | None) -> None:
        """After a failure: the next alternative in list order; raises where the call cannot be answered."""
        self.failures[self.position] = failure
        candidate = self.tuning.candidates[self.position]
        if undo is not None:
            undo()
        elif candidate.alternative.mutates:
            self._withdraw()
            raise failure
        above = self.parent.positions_above(self.selector, self.tuning.problem) if self.parent is not None else set()
        others = [p for p in self.tuning.remaining() if p not in self.failures and p not in above]
        if not others:
            self._withdraw()
            raise self._unanswered() from failure
        self.position = others[0]
        if self.begun is not None and self.stage == 0:
            self.begun.position = self.position
        else:
            self._withdraw()  # the stages of two alternatives make no pass

    def _withdraw(self) -> None:
        with self.selector._lock:
            if self.begun in self.tuning.passes:
                self.tuning.passes.remove(self.begun)
        self.begun = None

    def _unanswered(self) -> Exception:
        """The error of a call that no alternative answered. Where all fail alike, the call itself is at fault, and the
        program gets the error that it would get without a selector. Nothing is held against the alternatives."""
        names = {p: self.tuning.candidates[p].alternative.name for p in self.failures}
        first = self.failures[min(self.failures)]
        if len({type(error) for error in self.failures.values()}) == 1:
            return first
        reasons = "; ".join(f"{names[p]}: {_told(self.failures[p])}" for p in sorted(self.failures))
        return NoAlternative(
            f"{self.selector._where(self.tuning.problem)}: every alternative failed: {reasons}",
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
        wrong = self._fault(expected, result) if expected is not _UNKNOWN else None
        if wrong is not None:
            if undo is not None:  # the arguments must show what the first alternative makes of them
                undo()
                reference = self.tuning.remaining()[0]
                expected = self.tuning.candidates[reference].stages[self.stage](*args, **kwargs)
            self._withdraw()
        self._tell(trial, seconds, wrong)
        return result if wrong is None else expected

    def _fault(self, expected: Any, result: Any) -> str | None:
        """What is wrong with a result; None where it passes, and is trusted from now on."""
        try:
            compare(self.selector._check, expected, result)
        except WrongResult as error:
            return str(error)
        except Exception as error:
            return f"check raised {_told(error)}"
        self.tuning.candidates[self.position].trusted = True
        return None

    def _tell(self, trial: Trial, seconds: float, wrong: str | None) -> None:
        """Book one answered call: what failed on the way, what it took, what was met inside."""
        selector, tuning = self.selector, self.tuning
        disqualified = self._disqualified(wrong) if wrong is not None or self.failures else None
        with selector._lock:
            if disqualified is not None:
                self._take_out(disqualified)
            if wrong is None:
                self._book(trial, seconds)
            tuning.verified = True
            selector.conclude(tuning)
        if disqualified is not None:
            self._warn(disqualified)

    def _take_out(self, disqualified: dict[int, str]) -> None:
        selector, tuning = self.selector, self.tuning
        for position, reason in disqualified.items():
            tuning.disqualify(position, reason)
            name = tuning.candidates[position].alternative.name
            selector.journal.add(DisqualificationEntry(tuning.problem, name, reason))
            if tuning.decision is not None and tuning.decision.position == position:
                selector.reopen(tuning)

    def _warn(self, disqualified: dict[int, str]) -> None:
        for position, reason in disqualified.items():
            name = self.tuning.candidates[position].alternative.name
            warnings.warn(
                f"{self.selector._where(self.tuning.problem)}: alternative {name!r} was disqualified: {reason}; "
                f"another one answered the call",
                BestofWarning,
                stacklevel=3,
            )

    def _disqualified(self, wrong: str | None) -> dict[int, str]:
        """The alternatives that this call takes out, each with the reason."""
        disqualified = {position: f"raised {_told(error)}" for position, error in self.failures.items()}
        if wrong is not None:
            disqualified[self.position] = f"wrong result: {wrong}"
        return disqualified

    def _book(self, trial: Trial, seconds: float) -> None:
        selector, tuning, begun = self.selector, self.tuning, self.begun
        whole, clean, total = True, trial.clean, seconds
        if begun is not None:
            begun.seconds = total = begun.seconds + seconds
            begun.clean = clean = begun.clean and clean
            whole = tuning.close_stage(begun, self.stage)
        if not self.timed or tuning.decision is not None:
            return
        candidate = tuning.candidates[self.position]
        if trial.children is not None:
            candidate.children |= trial.children
        selector.journal.add_trial(tuning.problem, candidate.alternative.name, self.stage, seconds, clean)
        selector.trials += 1
        selector.trial_seconds += seconds
        candidate.seconds += seconds
        candidate.calls += whole
        # A clock that goes backwards says nothing about the alternative.
        if whole and clean and total >= 0.0:
            tuning.tell(self.position, total)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
