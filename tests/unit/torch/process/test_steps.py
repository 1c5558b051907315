"""The steps of a program: those of its optimizers, or its own."""

from __future__ import annotations

import pytest
import torch

import bestof
import bestof.torch
from bestof.selection import Window
from bestof.torch.process import steps


@pytest.fixture(name="window")
def _window(monkeypatch: pytest.MonkeyPatch) -> Window:
    monkeypatch.setattr(steps._Count, "by_program", False)
    window = Window(1, 10)
    bestof.use_policy(window)
    steps.count_steps()
    yield window
    bestof.use_policy(None)


def optimizer() -> torch.optim.Optimizer:
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], 0.1)


def test_steps_of_all_optimizers_count(window: Window) -> None:
    before, two = steps.steps(), [optimizer(), optimizer()]
    for one in two:
        one.step()
    assert (window.steps, steps.steps() - before) == (2, 2)


def test_a_program_that_counts_itself_counts_alone(window: Window) -> None:
    before = steps.steps()
    for _ in range(3):
        optimizer().step()
        bestof.torch.step()
    # The first step of the optimizer came before the first call of `step`.
    assert (window.steps, steps.steps() - before) == (4, 4)
