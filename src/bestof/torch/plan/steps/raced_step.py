"""A step that PyTorch's operator or a native kernel runs, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.plan.steps.chosen_step import Choice, ChosenStep, Runner

ALTERNATIVES = PYTORCH, NATIVE = "pytorch", "native"

# As few rounds as for fused layers, which race at the same time.
_POLICY = Race(max_trials=12)


class RacedProblem(NamedTuple):
    """What is chosen for: an operation, its shapes and options as text, and the threads."""

    operation: str
    shapes: str
    threads: int

    @classmethod
    def of(cls, operation: str, shapes: str) -> RacedProblem:
        """Return the problem for the number of threads in use now."""
        return cls(operation, shapes, torch.get_num_threads())

    def can_run(self, name: str) -> bool:
        """Return whether a name is one of the two alternatives."""
        return name in ALTERNATIVES

    def canonical(self) -> str:
        """Return the text that identifies the problem in the store."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        return f"{self.operation} {self.shapes}"


class RacedStep(ChosenStep):
    """An operation at its place in memory, with its two alternatives.

    `reference` returns the result in float64, for the inputs that the step has now. `out` is where
    both alternatives write. `added`: an operand that may lie there too, and is then overwritten.
    `eager` returns the alternative that eager calls of the same problem have chosen, or None.
    """

    pytorch: ClassVar[str] = PYTORCH

    def __init__(
        self,
        choice: Choice,
        pytorch: Runner,
        native: Runner,
        reference: Callable[[], Tensor],
        out: Tensor,
        added: Tensor | None = None,
        eager: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(choice)
        self.reference, self.out, self._eager = reference, out, eager
        overwrites = added is not None and added.data_ptr() == out.data_ptr()
        self._overwritten = added if overwrites else None
        self._runners = {PYTORCH: pytorch, NATIVE: native}

    def runner(self, name: str) -> Runner:
        """Return the function that runs the step by one alternative."""
        return self._runners[name]

    def overwritten(self) -> Tensor | None:
        """Return a copy of the operand that a run overwrites; None if it overwrites none."""
        return None if self._overwritten is None else self._overwritten.clone()

    def renew(self, overwritten: Tensor | None) -> None:
        """Prepare another run on the same operands, and poison the result of the one before."""
        if self._overwritten is None:
            self.out.fill_(float("nan"))
        elif overwritten is not None:
            self._overwritten.copy_(overwritten)

    @property
    def selector(self) -> BestOf:
        """The selector of all such steps."""
        return selector()

    def decision(self) -> str | None:
        """Return the selector's decision, or else that of eager calls; None without either."""
        return super().decision() or self._eager()


@cache
def selector() -> BestOf:
    """Return the selector of all raced steps. It is called with a `RacedStep`, and runs it."""
    return BestOf(
        "plan step",
        [
            Alternative(PYTORCH, lambda step: step.runner(PYTORCH)(), DEPENDS),
            Alternative(NATIVE, lambda step: step.runner(NATIVE)(), DEPENDS),
        ],
        lambda step: step.problem,
        policy=UnlessShared(_POLICY),
    )
