"""What the trials of one selector cost, and whether the next one may begin."""

from __future__ import annotations

import time
from collections import deque
from math import inf

from bestof.selection.policies.window import Window
from bestof.selection.state import registry
from bestof.selection.state.budget import LEAST_COST, Budget
from bestof.selection.state.candidate import Candidate
from bestof.selection.state.policy_choice import PolicyChoice
from bestof.selection.state.tuning import Tuning
from bestof.selection.trials.crowd import Waits
from bestof.selection.trials.trial import Trial

_COURSE_KEPT = 4096  # decisions
_COMPARISON = 3.0  # calls: the cost of a comparison, before the first
_DEARER = 4.0  # times the price so far: the most that one comparison may be worth to it


class TrialCosts:
    """What the trials of one selector cost, and whether the next one may begin.

    A trial is booked three times, because it is compared with three things:

    - With nothing. `trials` and `trial_seconds` add up all that was timed.
    - With the winner. `loss_seconds` is what the trials that count took beyond it. This is known
      when the problem is decided. Until then, each `Candidate` adds up its own trials.
    - With the fastest trial of the problem so far. What a trial took beyond it is booked in
      `budget`, the account of the process, which decides whether the next trial must wait.

    Comparisons of first results, and what `set_apart` takes out of a trial, are booked in `budget`
    alone.

    share: of the time, for trials; None for no bound. checks: whether first results are compared.
    comparison: what a comparison has cost of late, in calls. course: for time lines, when each
    decision was made, and the trials and their seconds until then.

    Called with the lock of the selector held, unless a function says otherwise.
    """

    def __init__(
        self, budget: Budget, share: float | None, choice: PolicyChoice, *, checks: bool
    ) -> None:
        self.budget = budget
        self.share = share
        self._choice = choice
        self._checks = checks
        self.comparison = _COMPARISON
        self.trials = 0
        self.trial_seconds = 0.0
        self.loss_seconds = 0.0
        self.course: deque[tuple[float, int, float]] = deque(maxlen=_COURSE_KEPT)

    def continues(self, earlier: TrialCosts) -> None:
        """Begin with the sums of the selector before its alternatives changed."""
        self.trials, self.trial_seconds = earlier.trials, earlier.trial_seconds
        self.loss_seconds, self.course = earlier.loss_seconds, earlier.course

    # Before a trial

    def may_try(self, tuning: Tuning, asked: int | None = None) -> bool:
        """Return whether the next trial, with its comparison, need not wait.

        It waits for the budget, and for neighbours that have the processors. asked: what the search
        has asked for. Without it, the search is asked, which needs the lock.
        """
        least = tuning.least
        if least == inf or registry.ranks_agree():
            return True  # the program needs the call; or all ranks of a job try alike
        if isinstance(self._choice.current(), Window):
            return True  # the program has named the steps that may be slow
        position = tuning.asked if asked is None else asked
        if position is None:
            position = tuning.ask()
        if position is None:
            return True  # the search is over
        if self.budget.is_crowded(self.share, least):
            return False
        cost = tuning.likely_cost(position)
        if self._checks and position > 0 and not tuning.candidates[position].trusted:
            cost += least * self.comparison
        # A trial that is likely to cost nothing waits too, while the account is used up.
        return self.budget.allows(self.share, max(cost, min(least, LEAST_COST)))

    def may_compare(self) -> bool:
        """Return whether the budget allows a cheap comparison of a trusted alternative.

        The lock need not be held.
        """
        return registry.ranks_agree() or self.budget.has_left(self.share)

    def watch(self, tuning: Tuning) -> Waits | None:
        """Return what tells later whether a trial that begins now had to wait for neighbours.

        The lock need not be held.
        """
        if registry.ranks_agree() or isinstance(self._choice.current(), Window):
            return None  # as in `may_try`
        return self.budget.watch(self.share, tuning.least)

    # After it

    def own_seconds(self, trial: Trial, seconds: float, before: Waits | None) -> float:
        """Return the time of a trial without what was set apart, and book that on its own.

        Note too for how long the trial waited. before: what `watch` has returned. The lock need
        not be held.
        """
        if before is not None:
            trial.waited = self.budget.waited_in(before, seconds)
        if not trial.apart:
            return seconds
        self._pay(trial.apart)
        return max(0.0, seconds - trial.apart)

    def took(self, seconds: float) -> None:
        """Book that a call was timed, whether its time counts or not."""
        self.trials += 1
        self.trial_seconds += seconds

    def counted(self, tuning: Tuning, candidate: Candidate, seconds: float, waited: float) -> None:
        """Book the trial of a whole pass.

        waited: for how many of these seconds. What neighbours took is no cost of tuning, and such a
            trial does not tell how fast its alternative is.
        """
        candidate.counted += 1
        candidate.seconds += seconds - waited
        if self.budget.is_on:
            self.budget.book(seconds - waited - tuning.least)
            if not waited:
                tuning.least = min(tuning.least, seconds)

    def decided(self, tuning: Tuning, best: float | None) -> None:
        """Book that a problem is decided. best: the seconds of its winner, if it was measured."""
        self.course.append((time.perf_counter(), self.trials, self.trial_seconds))
        for candidate in tuning.candidates:
            if best is not None:
                self.loss_seconds += max(0.0, candidate.seconds - candidate.counted * best)
            candidate.seconds, candidate.calls, candidate.counted = 0.0, 0, 0

    def compared(self, cost: float, seconds: float, *, trusted: bool) -> None:
        """Book what the comparison of a first result cost. The lock need not be held.

        seconds: of a call before it, by which later costs are told from later calls: of the fastest
            trial so far, or of the compared alternative if there is none, or if it is one stage.
        trusted: whether it was one of a trusted alternative. It is cheaper than others, whose cost
            it does not tell.
        """
        self._pay(cost)
        if 0.0 < seconds < inf and not trusted:
            # The first one may pay for what a library sets up: seconds, on a device. Alone, it
            # raises the price of later ones by a few times only.
            dear = _DEARER * self.comparison
            self.comparison = (self.comparison + min(cost / seconds, dear)) / 2

    def _pay(self, seconds: float) -> None:
        if self.budget.is_on:
            self.budget.book(seconds)
