"""Time some settled calls, and run the race again if the winner's time has drifted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from math import inf
from types import CoroutineType
from typing import Any

from bestof.selection.interrupts import comes_from_outside, reraise_from_outside
from bestof.selection.passes import NEVER, PythonWinner
from bestof.selection.policies import Drift, Mixture, Neighbour
from bestof.selection.policies.policy import Policy, searches_at_any_time
from bestof.selection.policies.recorded import Recorded
from bestof.selection.state import registry
from bestof.selection.state.decision import Decision
from bestof.selection.state.earlier_race import EarlierRace
from bestof.selection.state.journal import DisqualificationEntry, DriftEntry
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.lock import current_lock
from bestof.selection.state.policy_choice import PolicyChoice
from bestof.selection.state.sample_interval import calls_between
from bestof.selection.state.tuning import new_tuning
from bestof.selection.trials.circumstances import circumstances
from bestof.selection.trials.trial import Trial, call_inside
from bestof.selection.trials.verifier import Verdict, Verifier

_log = logging.getLogger("bestof")

_REST_DOUBLED = 10  # the most doublings: nine samples become 9,216


class DriftWatch:
    """Times some settled calls, and reopens the race of a winner whose time has drifted.

    If the selector has a verifier, the results of some of these calls are compared instead.
    Calls on the long way are not sampled. So calls inside trials do not count.
    """

    __slots__ = ("__weakref__", "_choice", "_clock", "_knowledge", "name")

    def __init__(
        self, knowledge: Knowledge, choice: PolicyChoice, clock: Callable[[], float]
    ) -> None:
        self.name = knowledge.name
        self._knowledge = knowledge
        self._choice = choice
        self._clock = clock

    def agreed(self, policy: Policy, problem: Hashable, reopens: bool = False) -> Policy:
        """Return the policy that all ranks of a job share, or `policy` if there is one rank.

        reopens: this rank is the first one to search the problem again.
        """
        agreement = registry.Defaults.agreement
        return policy if agreement is None else agreement.policy(self, problem, policy, reopens)

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem again, as another rank does; false if it is not settled here."""
        knowledge = self._knowledge
        with knowledge.lock:
            decision, winner = knowledge.decisions.get(problem), knowledge.winner(problem)
            if decision is None or winner is None:
                return False
            self._race_again(decision, winner, decision.seconds or 0.0, None, drifted=False)
        if knowledge.notices:
            knowledge.tell()
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        return True

    def give_up(self, problem: Hashable, reason: str) -> bool:
        """Search a settled problem without its winner, which has failed in a call.

        Return false if the problem is not settled here, or if no other alternative remains.
        """
        knowledge = self._knowledge
        with knowledge.lock:  # `winner` may move it to the problems of late
            decision, winner = knowledge.decisions.get(problem), knowledge.winner(problem)
        if decision is None or winner is None:
            return False
        return self._take_out(decision, winner, reason)

    def sampled(
        self,
        winner: PythonWinner,
        problem: Hashable,
        stage: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        seconds = -1.0

        def timed() -> Any:
            nonlocal seconds
            clock = self._clock
            # Since the last sample, the code of this loop has left the caches: its first call
            # took 5 us more than the next one. So an empty function is called twice first.
            for function in (_nothing, _nothing, winner.functions[stage]):
                seconds, started = -1.0, clock()
                answer = function(*args, **kwargs)
                seconds = clock() - started
            return answer

        verifier = self._knowledge.verifier
        if verifier is not None:
            decision = self._knowledge.decisions.get(problem)
            if decision is not None and self._is_due(verifier, decision, stage):
                return self._compare(verifier, winner, decision, stage, args, kwargs)
        # It is a trial, so that unsettled choices inside can mark it as not clean. It is not put
        # into `detours`, so that settled calls stay on the hot path. If it raises, the next sample
        # is the one that the hot path has set.
        trial = Trial(self._knowledge, problem, -1, None)
        result = call_inside(trial, timed, (), {})
        winner.sample_at = winner.calls + calls_between(seconds, winner.calls)
        # For a coroutine, the clock has timed its creation only.
        if trial.clean and 0.0 <= seconds < inf and type(result) is not CoroutineType:
            self._observe(winner, problem, stage, seconds)
        return result

    def _is_due(self, verifier: Verifier, decision: Decision, stage: int) -> bool:
        """Return whether the result of this settled call should be compared again."""
        guess = (1 + self._knowledge.costs.comparison) * (decision.seconds or 0.0)
        return not verifier.trusts(decision.alternative) and registry.Defaults.live_checks.is_due(
            (self.name, decision.problem, stage), guess
        )

    def _compare(
        self,
        verifier: Verifier,
        winner: PythonWinner,
        decision: Decision,
        stage: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Answer a settled call and compare its result. Its time tells nothing of drift."""
        function, checks = winner.functions[stage], registry.Defaults.live_checks

        def compared() -> Verdict:
            try:
                expected = verifier.expect(stage, args)
            except Exception:  # memory is short, say
                reraise_from_outside()
                return Verdict(function(*args, **kwargs), tells=False)
            if type(expected) is Verdict:
                return Verdict(function(*args, **kwargs), tells=False)
            try:
                result = function(*args, **kwargs)
            except Exception:
                verifier.put_back(expected)
                raise
            return verifier.judge(decision.alternative, stage, args, expected, result)

        trial, started = Trial(self._knowledge, decision.problem, -1, None), checks.clock()
        try:
            verdict: Verdict = call_inside(trial, compared, (), {})
        finally:
            checks.book((self.name, decision.problem, stage), checks.clock() - started)
        winner.sample_at = winner.calls + calls_between(decision.seconds or 0.0, winner.calls)
        if verdict.wrong is not None:
            self._take_out(decision, winner, f"wrong result: {verdict.wrong}")
        return verdict.answer

    def _take_out(self, decision: Decision, winner: PythonWinner, reason: str) -> bool:
        """Disqualify a winner that has become wrong, and search without it.

        Return false if no other alternative remains.
        """
        knowledge, problem = self._knowledge, decision.problem
        with knowledge.lock:
            if winner is not knowledge.winner(problem):
                return True  # replaced meanwhile
            policy: Policy = Recorded(())  # a locked run takes the first that remains
            if current_lock() is None:
                policy = self.agreed(self._choice.current(), problem, True)
            tuning = new_tuning(
                problem,
                *(knowledge.alternatives, knowledge.stages),
                *(policy, knowledge.refused),
                wanted=[decision.alternative],
            )
            seconds = decision.seconds or 0.0
            tuning.continues(decision, EarlierRace(decision.alternative, seconds, seconds))
            if not tuning.disqualify(decision.position, reason):
                return False
            tuning.candidates[decision.position].circumstances = circumstances()
            tuning.former, tuning.history = None, decision.history
            knowledge.journal.add(DisqualificationEntry(problem, decision.alternative, reason))
            knowledge.notices.append(
                f"{knowledge.where(problem)}: alternative {decision.alternative!r} was "
                f"disqualified: {reason}; another alternative answered the call"
            )
            knowledge.reopen(tuning)
            knowledge.save(tuning)  # now: the next run must not adopt the decision
            knowledge.conclude(tuning)
        knowledge.tell()
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        return True

    def _observe(self, winner: PythonWinner, problem: Hashable, stage: int, seconds: float) -> None:
        """Take one sampled time, or drop it if another thread has the lock."""
        lock = self._knowledge.lock
        if lock._is_owned():  # type: ignore[attr-defined]  # RLock has it, for Condition
            return  # called by a finalizer, or a signal handler, while this thread had the lock
        try:
            self._observe_if_free(winner, problem, stage, seconds)
        except BaseException:
            # Asked, not remembered: the interrupt may have come just after the lock was taken, or
            # just before it was given back.
            if lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
            raise
        if self._knowledge.notices:
            self._knowledge.tell()
        if self._knowledge.journal.undelivered:
            self._knowledge.journal.deliver()

    def _observe_if_free(
        self, winner: PythonWinner, problem: Hashable, stage: int, seconds: float
    ) -> None:
        lock = self._knowledge.lock
        if not lock.acquire(blocking=False):
            return
        try:
            decision = self._knowledge.decisions.get(problem)
            if decision is None or winner is not self._knowledge.winner(problem):
                return  # replaced while it ran
            drift = self._knowledge.drifts.get(problem)
            if drift is None:
                drift = self._knowledge.drifts[problem] = _drift_of(decision, len(winner.functions))
            if drift.tell(seconds, stage) and drift.now is not None:
                self._race_again(decision, winner, drift.now, drift.populations)
        except BaseException as error:
            # What was told of the samples would not be told again: they are taken anew.
            self._knowledge.drifts.pop(problem, None)
            if not isinstance(error, Exception) or comes_from_outside(error):
                raise
            # It was raised by a policy or a problem, and the call was answered.
            winner.sample_at = NEVER
            self._knowledge.notices.append(
                f"{self._knowledge.where(problem)}: its drift is no longer watched: "
                f"{type(error).__name__}: {error}"
            )
        finally:
            lock.release()

    def _race_again(
        self,
        decision: Decision,
        winner: PythonWinner,
        now: float,
        populations: tuple[float, float] | None,
        drifted: bool = True,
    ) -> None:
        """Search again with fresh samples.

        The previous winner comes first, and gets near-ties. drifted: the winner's time has drifted
        here, and not on another rank.
        """
        if self._choice.first_sample(decision) == NEVER:  # another policy is in use by now
            winner.sample_at = NEVER
            return
        policy: Policy = Mixture(decision.alternative)
        usual = self._choice.current()
        if populations is None and searches_at_any_time(usual):
            policy = Neighbour(decision.alternative, usual)
        policy = self.agreed(policy, decision.problem, drifted)
        tuning = new_tuning(
            decision.problem,
            *(self._knowledge.alternatives, self._knowledge.stages),
            *(policy, self._knowledge.refused),
            wanted=[decision.alternative],
        )
        reopening = EarlierRace(decision.alternative, decision.seconds or 0.0, now, populations)
        tuning.continues(decision, reopening)
        if len(tuning.remaining()) < 2:
            winner.sample_at = NEVER
            return
        self._knowledge.journal.add(
            DriftEntry(decision.problem, reopening.alternative, reopening.before, reopening.after)
        )
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s: drift: %s", self._knowledge.where(decision.problem), reopening)
        self._knowledge.reopen(tuning)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing. This call warms up the code of a sample."""


def _drift_of(decision: Decision, stages: int) -> Drift:
    """Return the drift state of a decision.

    Each earlier race doubles the number of samples that are ignored at first. A call that keeps
    slowing down, for example with its data, thus costs little. If the last race was run because the
    winner had become faster, the next one is not run for that reason: a winner may always be slower
    in a race than alone.
    """
    baseline, history = decision.seconds or 0.0, decision.history
    window = Drift(baseline).window
    rest = window * 2 ** min(len(history), _REST_DOUBLED) if history else 0
    if history and history[-1].populations is not None:
        return Drift(baseline, rest=rest, mixed=True)
    if history and history[-1].faster:
        return Drift(baseline, speedup=inf, stages=stages, rest=rest)
    return Drift(baseline, stages=stages, rest=rest)
