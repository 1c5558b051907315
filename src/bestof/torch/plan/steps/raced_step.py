"""A step that PyTorch's operator or a native kernel runs, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from bestof.selection import Alternative, BestOf, Race, unless_shared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.plan.algorithms.algorithm import Runner
from bestof.torch.plan.algorithms.choice import Choice
from bestof.torch.plan.layers.frozen_weights import Packed
from bestof.torch.plan.layers.raced_problem import NATIVE, PYTORCH

# As few rounds as for fused layers, which race at the same time.
_POLICY = Race(max_trials=12)


class RacedStep:
    """An operation at its place in memory, with its two alternatives.

    While the choice is open, each call goes through the selector, which tries both. Once it is
    settled, `run` is the chosen alternative itself. `reference` returns the result in float64, for
    the inputs that the step has now. `out` is where both alternatives write. `added`: an operand
    that may lie there too, and is then overwritten.
    """

    packed: tuple[Packed, ...] = ()

    def __init__(
        self,
        choice: Choice,
        pytorch: Runner,
        native: Runner,
        reference: Callable[[], Tensor],
        out: Tensor,
        added: Tensor | None = None,
    ) -> None:
        self.choice, self.reference, self.out = choice, reference, out
        overwrites = added is not None and added.data_ptr() == out.data_ptr()
        self._overwritten = added if overwrites else None
        self._runners = {PYTORCH: pytorch, NATIVE: native}

    @property
    def problem(self) -> Any:
        """What is chosen for."""
        return self.choice.problem

    @property
    def algorithm(self) -> str | None:
        """The name of the chosen alternative; None while the choice is open."""
        return self.choice.algorithm

    @property
    def run(self) -> Runner:
        """The function that runs the step."""
        name = self.algorithm
        return (lambda: selector()(self)) if name is None else self._runners[name]

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
    def raced_bytes(self) -> int:
        """Neither alternative packs weights."""
        return 0

    def prepare(self) -> None:
        """Do nothing: both alternatives are bound already."""

    def settle(self, name: str) -> None:
        """Choose an alternative."""
        self.choice.settle(name)

    def learn(self) -> bool:
        """Take the selector's decision if there is one; return whether the choice is settled."""
        if self.algorithm is None:
            decision = selector().explain(self).decision
            if decision is None:
                return False
            self.choice.take(decision)
        return True


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
        policy=unless_shared(_POLICY),
    )
