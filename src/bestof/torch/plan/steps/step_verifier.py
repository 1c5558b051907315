"""Compares the first result of each alternative of a step, on each problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bestof.selection import Verdict, Verifier
from bestof.selection.interrupts import reraise_from_outside
from bestof.torch.plan.steps.compared_step import ComparedStep


class StepVerifier(Verifier):
    """A verifier for selectors that are called with a `ComparedStep`, and run it.

    The result stays in the memory of the step. If it is wrong, PyTorch's takes its place.
    """

    def __init__(self, trusts: Callable[[str], bool]) -> None:
        self._trusts = trusts

    def trusts(self, alternative: str) -> bool:
        """Return whether this is PyTorch's own kernel."""
        return self._trusts(alternative)

    def expect(self, _stage: int, args: tuple[Any, ...]) -> tuple[ComparedStep, Tensor | None]:
        """Return the step, and a copy of the operand that a run overwrites."""
        step: ComparedStep = args[0]
        overwritten = step.overwritten()
        step.renew(overwritten)
        return step, overwritten

    def judge(
        self,
        alternative: str,
        _stage: int,
        _args: tuple[Any, ...],
        expected: tuple[ComparedStep, Tensor | None],
        got: Any,
    ) -> Verdict:
        """Return the verdict on what an alternative has left in the memory of the step."""
        step, overwritten = expected
        try:
            wrong, _ = step.judged(alternative, overwritten, for_good=True)
        except (RuntimeError, MemoryError):  # memory is short: the next result is compared
            reraise_from_outside()
            return Verdict(self._by_pytorch(expected), tells=False)
        return Verdict(got if wrong is None else self._by_pytorch(expected), wrong)

    def put_back(self, expected: tuple[ComparedStep, Tensor | None]) -> None:
        """Put an overwritten operand back."""
        step, overwritten = expected
        step.renew(overwritten)

    def _by_pytorch(self, expected: tuple[ComparedStep, Tensor | None]) -> object:
        self.put_back(expected)
        step = expected[0]
        return step.runner(step.pytorch)()
