"""One step of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.raced_step import RacedStep


@dataclass(slots=True)
class Step:
    """One operator of a program, bound to memory.

    name, kind: for reports. slot: that of its result. is_planned: whether the result lies in the
    arena. run: the function that runs it. convolution: the fused layer that it is, or None.
    raced: another operation with an alternative by PyTorch, or None.
    """

    name: str
    kind: str
    slot: int
    is_planned: bool
    run: Callable[[], object]
    convolution: ConvolutionStep | None = None
    raced: RacedStep | None = None

    @property
    def chosen(self) -> ConvolutionStep | RacedStep | None:
        """What has an algorithm to choose; None for other steps."""
        return self.convolution or self.raced
