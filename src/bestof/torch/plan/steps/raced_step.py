"""A step that PyTorch's operator or a native kernel runs, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.ops.distance import distance, size_of
from bestof.torch.plan.steps.chosen_step import Choice, Runner
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.comparison import Comparison, stands_out
from bestof.torch.plan.steps.step_verifier import StepVerifier
from bestof.torch.rows.offer import asks, is_offered

ALTERNATIVES = PYTORCH, NATIVE = "pytorch", "native"

# As few rounds as for fused layers, which race at the same time.
_POLICY = Race(max_trials=12)

_EPS = float(torch.finfo(torch.float32).eps)
# PyTorch's error on normal numbers where all should vanish: norms of one number err by 1e-5.
_VANISHING = 1e-4
_TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers have fewer digits, or none


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


class RacedStep(ComparedStep):
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
        super().__init__(choice, out, added)
        self.reference, self._eager = reference, eager
        self._runners = {PYTORCH: pytorch, NATIVE: native}

    def runner(self, name: str) -> Runner:
        """Return the function that runs the step by one alternative."""
        return self._runners[name]

    def trusts(self, name: str) -> bool:
        """Return whether an alternative is PyTorch's operator."""
        return name == PYTORCH

    def compared(self, name: str | None, overwritten: Tensor | None) -> Comparison:  # noqa: ARG002  # both promise alike
        """Compare the result of the last run with float64.

        It may err twice as much as PyTorch does, and by four units more: PyTorch may be exact by
        chance. NaN and infinities must lie where PyTorch's do, or those of float64.
        """
        got = self.out.clone()
        self.renew(overwritten)
        right = self.reference()
        self.runner(PYTORCH)()
        as_right, theirs = distance(self.out, right)
        same, off = distance(got, right)
        same = same or distance(got, self.out).same
        self.out.copy_(got)
        numbers = size_of(right)
        size = numbers.rms
        unit = float(torch.finfo(got.dtype).eps)
        # Where PyTorch overflows, its other elements do not show how far results are rounded.
        allowed = 2 * theirs.rms + (4 * _EPS if as_right else 4 * unit) * size + _TINY
        ordinary = 4 * unit * size
        is_whole = numbers.many == right.numel()
        return Comparison(
            same,
            off.rms,
            allowed,
            off.peak,
            stands_out(numbers),
            shows=size > 0 and is_whole and as_right and theirs.rms <= ordinary,
            finite=is_whole,
            terms=got.shape[-1],
            explains=theirs.rms <= ordinary + _VANISHING,
        )

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
    made = BestOf(
        "plan step",
        [
            Alternative(PYTORCH, lambda step: step.runner(PYTORCH)(), DEPENDS),
            Alternative(
                NATIVE,
                lambda step: step.runner(NATIVE)(),
                DEPENDS,
                supports=lambda _: is_offered(NATIVE),  # configurations name it as eager calls do
            ),
        ],
        lambda step: step.problem,
        check=StepVerifier(lambda name: name == PYTORCH),
        policy=UnlessShared(_POLICY),
    )
    return asks(made)
