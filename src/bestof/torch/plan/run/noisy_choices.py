"""Race the choices of a noisy moment again, later, in the running plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from bestof.selection import BestOf
from bestof.selection.state.lock import current_lock
from bestof.selection.state.registry import Defaults
from bestof.torch.plan.steps.chosen_step import Choice, ChosenStep
from bestof.torch.plan.steps.compared_step import ComparedStep

WAIT = 5.0
"""Seconds until the race: a burst of load from a neighbour has ended by then."""


class NoisyChoices:
    """The choices of a program whose samples were noisy. Each is raced again once.

    A server makes its plan when it starts, beside others that start. What was chosen then would
    otherwise stay as long as the server runs.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._noisy: list[tuple[BestOf, Any]] = []

    def note(self, steps: Iterable[ChosenStep]) -> None:
        """Note the steps whose decision was made from noisy samples, by this process."""
        if current_lock() is not None or Defaults.agreement is not None:
            return  # a locked run keeps its decisions, and ranks reopen theirs together
        every = [one for step in steps for one in (step, *step.running)]
        self._noisy = [(one.selector, one.problem) for one in every if _is_noisy(one)]
        self._due = self._clock() + WAIT

    @property
    def are_due(self) -> bool:
        """Whether there are such choices, and the time has come."""
        return bool(self._noisy) and self._clock() >= self._due

    def reopen(self, choices: Iterable[Choice]) -> bool:
        """Open the noted choices; return whether any is open now."""
        noisy, self._noisy = self._noisy, []
        problems = [problem for selector, problem in noisy if selector.race_again(problem)]
        every = [one for choice in choices for one in (choice, *choice.parts)]
        return sum(one.reopen() for one in every if one.problem in problems) > 0


def _is_noisy(step: ChosenStep) -> bool:
    # The selectors of other steps are those of eager calls, which watch for drift.
    if not isinstance(step, ComparedStep) or step.choice.is_ordered:
        return False
    report = step.selector.explain(step)
    return report.noisy and report.decision == step.algorithm
