"""The observer of plans: while a profile is recorded, it runs each step inside of a range of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bestof.torch.plan.program import Step

# Called with a step in place of `step.run`; None while nobody observes, as nearly always.
run_step: Callable[[Step], object] | None = None
