"""The observer of plans, which runs their steps while a profile is recorded."""

from __future__ import annotations

from collections.abc import Callable

from bestof.torch.plan.steps.step import Step

# Called with a step in place of `step.run`; None unless a profile is being recorded.
run_step: Callable[[Step], object] | None = None
