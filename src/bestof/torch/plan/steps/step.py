"""One step of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from bestof.torch.plan.steps.chosen_step import ChosenStep
from bestof.torch.plan.steps.convolution_step import ConvolutionStep


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
