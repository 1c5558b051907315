"""Counts the steps of this process: the calls of `step` of its optimizers."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class _Count:
    steps = 0
    handle: Any = None


def count_steps() -> None:
    """Count the steps of all optimizers from now on. A second call does nothing."""
    if _Count.handle is None:
        _Count.handle = register_optimizer_step_post_hook(_stepped)


def steps() -> int:
    """Return the number of counted steps."""
    return _Count.steps


def _stepped(*_: Any) -> None:
    _Count.steps += 1
