"""A program bound to memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bestof.errors import TorchError
from bestof.selection.state.sample_interval import FIRST
from bestof.torch.backends.shim import Watch, watch
from bestof.torch.plan.memory.arena import Arena
from bestof.torch.plan.steps.chosen_step import ChosenStep
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.joined_runs import joined_runs
from bestof.torch.plan.steps.step import Step


@dataclass(slots=True)
class Binding:
    """The steps of a program, on an arena of its own; one call at a time.

    slots: the values of the running call. runs: what a call runs, one function a step. joined: the
    same, but native steps in a row are one function, which runs them on one team of threads; empty
    until all is settled. settled: whether all algorithms are chosen. shared, versions: the model's
    tensors that the steps read, and how often each was changed. home: where the binding waits
    between calls. calls: how many it has answered. asks_at: the call in which a comparison may be
    due. asked: the time and the call of the last question. checked: the place of the step that was
    compared last.
    """

    arena: Arena
    slots: list[Any]
    steps: list[Step]
    runs: list[Callable[[], object]] = field(default_factory=list)
    joined: list[Callable[[], object]] = field(default_factory=list)
    settled: bool = False
    shared: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    home: list[Any] = field(default_factory=list)
    watch: Watch | None = None
    calls: int = 0
    asks_at: int = FIRST
    asked: tuple[float, int] = (0.0, 0)
    checked: int = -1

    @property
    def chosen(self) -> list[ChosenStep]:
        """The steps with something to choose, those that others run in their turn among them."""
        steps = [step.chosen for step in self.steps if step.chosen is not None]
        return [one for step in steps for one in (step, *step.running)]

    @property
    def layers(self) -> list[ConvolutionStep]:
        """The steps that are fused layers."""
        return [one for one in self.chosen if isinstance(one, ConvolutionStep)]

    def refresh(self) -> None:
        """Bind to the algorithms that were chosen since."""
        self.joined = []  # first: an interrupt may end this
        choosing = [step.chosen for step in self.steps if step.chosen is not None]
        self.settled = sum(one.learn() for one in choosing) == len(choosing)
        for step in self.steps:
            if step.chosen is not None:
                step.run = step.chosen.run
        self.runs = [step.run for step in self.steps]
        if self.settled:
            self.joined = joined_runs(self.steps)

    def check(self) -> None:
        """Raise TorchError if a parameter that the steps read was changed in place."""
        if self.watch is not None and self.watch.is_unchanged():
            return
        if [one._version for one in self.shared] != self.versions:
            raise TorchError(
                "optimize: a parameter or buffer of the model was changed after the plan was made, "
                "which is frozen and "
                "shares the memory of those that it does not transform; call optimize again"
            )
        if self.watch is not None:
            self.watch = watch(self.shared, sampled=False)  # memory has moved
