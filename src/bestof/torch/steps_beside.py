"""Runs some steps of a training by PyTorch alone, and compares their times with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from bestof.selection.state.registry import Defaults, trials_of_all
from bestof.torch.enable import put_back, set_aside
from bestof.torch.process.step_ends import StepEnds

_LEAST = 3
"""Steps by PyTorch alone, with tuned ones near them, that a comparison needs."""


_CHEAP = 0.03
"""The share of a step that trials may cost if it counts as tuned. Within a budget, trials are
spread over many steps: none of 45 tuned steps of the demo was without one."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The seconds of steps by PyTorch alone, and of tuned steps in which trials cost little.

    ratios: of each step alone to the median of the tuned ones near it, so that a machine whose
        speed changes does not count.
    """

    alone: tuple[float, ...]
    tuned: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """How many times as long a step by PyTorch alone takes; None with too few steps."""
        return None if len(self.ratios) < _LEAST else median(self.ratios)


class StepsBeside:
    """Sets bestof aside for one of `every` steps.

    A step ends with `step` of an optimizer; see `StepEnds` for several. It is timed from the end of
    the one before, so that it counts data and both passes. The first step is not counted. The
    memory that bestof keeps, and threads that it has lowered, stay as they are in all steps.
    """

    def __init__(self, every: int, clock: Callable[[], float] = perf_counter) -> None:
        self._every, self._clock = every, clock
        self._ends = StepEnds()
        self._count = 0
        self._is_alone = False
        self._began: float | None = None
        self._trials = 0
        self._lost = 0.0
        self._alone: dict[int, float] = {}  # by the number of the step
        self._tuned: dict[int, float] = {}

    def start(self) -> None:
        """Watch all optimizers from now on."""
        register_optimizer_step_post_hook(self._stepped)

    def result(self) -> Beside:
        """Return the times so far."""
        ratios = []
        for step, seconds in self._alone.items():
            near = range(step - self._every + 1, step + self._every)
            tuned = [self._tuned[one] for one in near if one in self._tuned]
            if tuned:
                ratios.append(seconds / median(tuned))
        return Beside(tuple(self._alone.values()), tuple(self._tuned.values()), tuple(ratios))

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if not self._ends.ends_step(optimizer):
            return
        now, trials, budget = self._clock(), trials_of_all(), Defaults.budget
        if self._began is not None:
            if self._is_alone:
                self._alone[self._count] = now - self._began
            elif trials == self._trials or (
                budget.is_on and budget.lost - self._lost <= _CHEAP * (now - self._began)
            ):
                self._tuned[self._count] = now - self._began
        self._count += 1
        is_alone = self._count % self._every == 0
        if is_alone != self._is_alone:
            (set_aside if is_alone else put_back)()
            self._is_alone = is_alone
        self._began, self._trials, self._lost = self._clock(), trials, budget.lost
