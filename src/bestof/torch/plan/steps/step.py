"""One step of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from bestof.torch.plan.steps.chosen_step import ChosenStep
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.raced_step import RacedStep
from bestof.torch.plan.steps.row_step import RowStep


@dataclass(slots=True)
class Step:
    """One operator of a program, bound to memory.

    name, kind: for reports. slot: that of its result. is_planned: whether the result lies in the
    arena. run: the function that runs it. chosen: what has an algorithm to choose; None for other
    steps. observer: called with a step in place of its `run` while a profile is recorded.
    """

    observer: ClassVar[Callable[[Step], object] | None] = None

    name: str
    kind: str
    slot: int
    is_planned: bool
    run: Callable[[], object]
    chosen: ChosenStep | None = None

    @property
    def convolution(self) -> ConvolutionStep | None:
        """The fused layer that it is, or None."""
        return self.chosen if isinstance(self.chosen, ConvolutionStep) else None

    @property
    def raced(self) -> RacedStep | None:
        """The operation of the plan with a native kernel and one of PyTorch that it is, or None."""
        return self.chosen if isinstance(self.chosen, RacedStep) else None

    @property
    def by_row(self) -> RowStep | None:
        """The operation of `torch.ops` that it is, or None."""
        return self.chosen if isinstance(self.chosen, RowStep) else None
