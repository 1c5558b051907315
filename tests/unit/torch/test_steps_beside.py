"""Steps by PyTorch alone, between tuned ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bestof.torch as bt
from bestof.selection.state.budget import Budget
from bestof.selection.state.registry import Defaults
from bestof.torch import steps_beside
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.steps_beside import Beside, StepsBeside


class Clock:
    """Tells that tuned steps take a second, and those by PyTorch alone two."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alone: list[bool] = []

    def __call__(self) -> float:
        return self.now

    def step(self, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        silu = operation_override("silu")
        assert silu is not None
        self.alone.append(not silu.is_registered)
        self.now += 2.0 if self.alone[-1] else 1.0
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> StepsBeside:
    hooks: list[object] = []
    monkeypatch.setattr(steps_beside, "register_optimizer_step_post_hook", hooks.append)
    one = StepsBeside(3, clock := Clock())
    one.start()
    assert hooks == [one._stepped]
    one.clock = clock  # type: ignore[attr-defined]
    return one


def train(steps: StepsBeside, count: int) -> Clock:
    clock: Clock = steps.clock  # type: ignore[attr-defined]
    parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer, second = torch.optim.SGD([parameter]), torch.optim.SGD([other])
    for one in (optimizer, second):
        one.register_step_post_hook(steps._stepped)
    for _ in range(count):
        clock.step(parameter, optimizer)
        other.grad = torch.ones_like(other)
        second.step()  # of another optimizer: no step of its own
    return clock


def test_one_step_of_three_runs_by_pytorch_alone(steps: StepsBeside) -> None:
    bt.enable()
    clock = train(steps, 10)
    assert clock.alone == [False, False, False, True] + [False, False, True] * 2
    assert steps.result() == Beside((2.0,) * 3, (1.0,) * 6, (2.0,) * 3)
    assert steps.result().ratio == 2.0


def test_steps_with_trials_are_left_out(
    steps: StepsBeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = iter([0, 1, 2, 3, 4, 5, 5, 5, 5, 5])
    monkeypatch.setattr(steps_beside, "trials_of_all", lambda: next(trials))
    bt.enable()
    train(steps, 10)
    found = steps.result()
    assert (len(found.alone), len(found.tuned)) == (3, 2)
    assert len(found.ratios) == 2  # near the first one alone, every tuned step has a trial
    assert found.ratio is None


def test_steps_with_cheap_trials_count(steps: StepsBeside, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget()
    monkeypatch.setattr(Defaults, "budget", budget)
    monkeypatch.setattr(budget, "is_on", True)
    number = iter(range(100))

    def trials() -> int:
        one = next(number)
        budget.lost += 0.5 if one == 5 else 0.01
        return one

    monkeypatch.setattr(steps_beside, "trials_of_all", trials)
    bt.enable()
    train(steps, 10)
    assert len(steps.result().tuned) == 5  # of six, without the dear one


def test_a_program_that_never_enables_stays_as_it_is(steps: StepsBeside) -> None:
    bt.enable()
    bt.disable()
    clock = train(steps, 8)
    assert all(clock.alone)
