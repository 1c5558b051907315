"""Counts the steps of this process: by its optimizers, or by the program itself."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from bestof.selection.state.registry import count_step


class _Count:
    steps = 0
    handle: Any = None
    by_program = False


def count_steps() -> None:
    """Count the steps of all optimizers from now on. A second call does nothing."""
    if _Count.handle is None:
        _Count.handle = register_optimizer_step_post_hook(_stepped)


def steps() -> int:
    """Return the number of counted steps."""
    return _Count.steps


def step() -> None:
    """Count one finished step of the program, for windows of steps.

    Call it in loops without an optimizer, such as inference, or with several. From the first call
    on, the steps of optimizers count no longer.
    """
    _Count.by_program = True
    _count()


def _stepped(*_: Any) -> None:
    if not _Count.by_program:
        _count()


def _count() -> None:
    _Count.steps += 1
    count_step()
