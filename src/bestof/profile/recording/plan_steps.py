"""Adds ranges to PyTorch's profiler around the steps of plans: algorithm, problem and module."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from bestof.profile.recording.named_range import new_range
from bestof.profile.timeline.operation import KERNEL
from bestof.profile.timeline.own_lines import step_problem
from bestof.torch.plan.steps.step import Step


def watch_plan_steps() -> Callable[[], None]:
    """Begin. The returned function ends it."""
    before = Step.observer

    def stop() -> None:
        Step.observer = before

    Step.observer = _run_step
    return stop


def _run_step(step: Step) -> None:
    convolution = step.convolution
    if convolution is None:
        name = f"{KERNEL}{step.kind.replace(':', '.')}::{step.name}"
    else:
        algorithm = convolution.algorithm or "unsettled"
        name = f"{KERNEL}{algorithm}:{_problem(convolution.problem.convolution)}:{step.name}"
    with new_range(name):
        step.run()


@cache
def _problem(problem: Any) -> str:
    return step_problem(problem)
