"""Settled calls that are timed now and then, and the race that is run again where their time has
drifted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from math import inf
from types import CoroutineType
from typing import Any

from bestof.selection import registry
from bestof.selection.decision import Decision
from bestof.selection.earlier_race import EarlierRace
from bestof.selection.journal import DriftEntry
from bestof.selection.knowledge import Knowledge
from bestof.selection.open_tuning import open_tuning
from bestof.selection.policies import Drift, Mixture, Neighbour
from bestof.selection.policy import Policy, searches_at_any_time
from bestof.selection.policy_choice import PolicyChoice
from bestof.selection.sample_interval import calls_between
from bestof.selection.trial import Trial, current_trial
from bestof.selection.winner import NEVER, PythonWinner

_log = logging.getLogger("bestof")

_REST_DOUBLED = 10  # times at most, so that nine samples become 9,216


class DriftWatch:
    """Times settled calls now and then, and reopens the race of a winner whose time has left that
    of its decision.

    Calls that take the long way are not watched, so calls inside trials never count.
    """

    __slots__ = ("__weakref__", "_choice", "_clock", "_knowledge", "name")

    def __init__(
        self, knowledge: Knowledge, choice: PolicyChoice, clock: Callable[[], float]
    ) -> None:
        self.name = knowledge.name
        self._knowledge = knowledge
        self._choice = choice
        self._clock = clock

    def agreed(self, policy: Policy, problem: Hashable) -> Policy:
        """Return the policy that all ranks of a job share, or `policy` where there is one rank."""
        agreement = registry.Defaults.agreement
        return policy if agreement is None else agreement.policy(self, problem, policy)

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem anew, as another rank does; false if it is not settled here."""
        knowledge = self._knowledge
        with knowledge.lock:
            decision, winner = knowledge.decisions.get(problem), knowledge.winner(problem)
            if decision is None or winner is None:
                return False
            self._race_again(decision, winner, decision.seconds or 0.0, None)
        if knowledge.notices:
            knowledge.tell()
        if knowledge.journal.undelivered:
            knowledge.journal.deliver()
        return True

    def after_fork(self) -> None:
        """In a child process, too: what another thread of the parent was just sampling is watched
        on."""
        for problem, winner in self._knowledge.winners():
            decision = self._knowledge.decisions.get(problem)
            first = NEVER if decision is None else self._choice.first_sample(decision)
            if winner.sample_at == NEVER and first != NEVER:
                winner.sample_at = winner.calls + first

    def sampled(
        self,
        winner: PythonWinner,
        problem: Hashable,
        stage: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        # A trial, so that an unsettled choice inside makes itself known; no detour, so that settled
        # calls inside, and those of other threads, stay on the hot path.
        trial = Trial(self._knowledge, problem, -1, None)
        token = current_trial.set(trial)
        clock, seconds, result = self._clock, -1.0, None
        try:
            # The code here has left the caches since the last sample: the first call through it
            # took 5 us more than the same call a moment later. So nothing is called first, twice.
            for function in (_nothing, _nothing, winner.functions[stage]):
                seconds, started = -1.0, clock()
                result = function(*args, **kwargs)
                seconds = clock() - started
        finally:
            current_trial.reset(token)
            trial.done = True
            winner.sample_at = winner.calls + calls_between(seconds, winner.calls)
        # The time in which a coroutine was made is not the time that it takes.
        if trial.clean and 0.0 <= seconds < inf and type(result) is not CoroutineType:
            self._observe(winner, problem, stage, seconds)
        return result

    def _observe(self, winner: PythonWinner, problem: Hashable, stage: int, seconds: float) -> None:
        """Take one sampled time. A settled call never waits: where another thread has the lock, the
        sample is lost."""
        if not self._knowledge.lock.acquire(blocking=False):
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
        except (
            Exception
        ) as error:  # of a policy, or of a problem that cannot be written: the call was answered
            winner.sample_at = NEVER
            self._knowledge.notices.append(
                f"{self._knowledge.where(problem)}: its drift is not watched any more: "
                f"{type(error).__name__}: {error}"
            )
        finally:
            self._knowledge.lock.release()
        if self._knowledge.notices:
            self._knowledge.tell()
        if self._knowledge.journal.undelivered:
            self._knowledge.journal.deliver()

    def _race_again(
        self,
        decision: Decision,
        winner: PythonWinner,
        now: float,
        populations: tuple[float, float] | None,
    ) -> None:
        """Search anew, with fresh samples; the winner so far comes first, and near-ties go to
        it."""
        if (
            self._choice.first_sample(decision) == NEVER
        ):  # the policy of the process is another one by now
            winner.sample_at = NEVER
            return
        policy: Policy = Mixture(decision.alternative)
        usual = self._choice.current()
        if populations is None and searches_at_any_time(usual):
            policy = Neighbour(decision.alternative, usual)
        policy = self.agreed(policy, decision.problem)
        tuning = open_tuning(
            decision.problem, self._knowledge.alternatives, self._knowledge.stages, policy
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
    """What a sample is warmed up with."""


def _drift_of(decision: Decision, stages: int) -> Drift:
    """What to watch a decision with. Each race before it doubles the rest: a time that no race can
    bring back, as that of a call which slows with what it was given, costs ever less. A winner that
    was found faster than its decision is not raced again for that at once: in a race it may always
    be slower than on its own."""
    baseline, history = decision.seconds or 0.0, decision.history
    window = Drift(baseline).window
    rest = window * 2 ** min(len(history), _REST_DOUBLED) if history else 0
    if history and history[-1].populations is not None:
        return Drift(baseline, rest=rest, mixed=True)
    if history and history[-1].faster:
        return Drift(baseline, speedup=inf, stages=stages, rest=rest)
    return Drift(baseline, stages=stages, rest=rest)
