"""Choices that were made from noisy samples are raced again, once, in the running plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plan_regimes import build, example
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.torch.plan.algorithms.table import PYTORCH
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run import live_check, noisy_choices
from bestof.torch.plan.run.noisy_choices import WAIT, NoisyChoices
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps import convolution_step
from bestof.torch.plan.steps.convolution_step import ConvolutionStep

EVERY = 16  # calls between two questions
CALLS = 400  # enough for every race


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time of all noisy choices; the account of live checks allows no comparison."""
    time = [0.0]
    monkeypatch.setattr(NoisyChoices, "__init__", _with_clock(time))
    monkeypatch.setattr(live_check, "calls_between", lambda *_: EVERY)
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(share=0.0))
    convolution_step.selector.cache_clear()
    yield time
    convolution_step.selector.cache_clear()


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice of a convolution was made from noisy samples."""
    monkeypatch.setattr(noisy_choices, "_is_noisy", lambda step: isinstance(step, ConvolutionStep))


def _with_clock(time: list[float]) -> Any:
    make = NoisyChoices.__init__

    def made(self: NoisyChoices) -> None:
        make(self, lambda: time[0])

    return made


def made() -> tuple[nn.Module, Tensor]:
    """Return a model and an example."""
    model, shape = build("convolutions", torch.float32)
    return model, example("normal", shape, torch.float32)


def program_of(plan: OptimizedModel) -> Program:
    return next(reversed(plan._programs.values())).program


def algorithms(plan: OptimizedModel) -> list[str | None]:
    return [one.algorithm for one in program_of(plan).choices.values()]


def call(plan: OptimizedModel, x: Tensor, right: Tensor, times: int) -> None:
    for _ in range(times):
        torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_noisy_choices_are_raced_again_once(now: list[float]) -> None:
    model, x = made()
    right = model(x)
    plan = bt.optimize(model, x)
    trials = convolution_step.selector().trials
    call(plan, x, right, 3 * EVERY)
    assert None not in algorithms(plan)  # it is not yet time
    now[0] = WAIT
    call(plan, x, right, EVERY)
    assert None in algorithms(plan)
    for _ in range(CALLS):
        call(plan, x, right, 1)
        if None not in algorithms(plan):
            break
    assert None not in algorithms(plan)
    assert convolution_step.selector().trials > trials
    again = convolution_step.selector().trials
    now[0] = 100 * WAIT
    call(plan, x, right, 3 * EVERY)
    assert None not in algorithms(plan)
    assert convolution_step.selector().trials == again


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_a_plan_whose_choices_wait_for_another_race_can_be_released(now: list[float]) -> None:
    model, x = made()
    plan, right = bt.optimize(model, x), model(x)
    first = reopened(plan, x, now)
    plan.release()
    assert algorithms(plan) == first
    call(plan, x, right, 1)


def reopened(plan: OptimizedModel, x: Tensor, now: list[float]) -> list[str | None]:
    """Call a plan until its choices are open again; return what they were."""
    first = algorithms(plan)
    now[0] = WAIT
    for _ in range(2 * EVERY):
        plan(x)
        if None in algorithms(plan):
            return first
    raise AssertionError("no choice was opened again")


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_a_refused_release_leaves_the_races_open(now: list[float]) -> None:
    model, x = made()
    plan, right = bt.optimize(model, x), model(x)
    reopened(plan, x, now)
    unmet = bt.optimize(model, torch.cat([x, x]), tune=False)
    plan.keep(next(iter(unmet._programs.values())))
    first, last = (one.program for one in plan._programs.values())
    with pytest.raises(TorchError, match="not chosen yet"):
        plan.release()
    for program in (first, last):
        assert None in [one.algorithm for one in program.choices.values()]
    call(plan, x, right, 1)


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_release_takes_the_decision_of_a_race_that_has_ended(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = made()
    plan = bt.optimize(model, x)
    reopened(plan, x, now)
    monkeypatch.setattr(ConvolutionStep, "decision", lambda step: PYTORCH.name)
    plan.release()
    assert set(algorithms(plan)) == {PYTORCH.name}


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_release_takes_no_alternative_that_has_failed_since(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = made()
    plan = bt.optimize(model, x)
    first = reopened(plan, x, now)
    monkeypatch.setattr(ConvolutionStep, "_has_failed", lambda step, name: name in first)
    with pytest.raises(TorchError, match="not chosen yet"):
        plan.release()
    assert None in algorithms(plan)


@torch.no_grad()
def test_steady_choices_stay(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_choices, "_is_noisy", lambda _: False)
    model, x = made()
    plan, right = bt.optimize(model, x), model(x)
    now[0] = WAIT
    call(plan, x, right, 3 * EVERY)
    assert None not in algorithms(plan)


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_orders_stay(now: list[float]) -> None:
    model, x = made()
    plan, right = bt.optimize(model, x), model(x)
    for choice in program_of(plan).choices.values():
        if choice.algorithm is not None:
            choice.settle(choice.algorithm)
    ordered = algorithms(plan)
    now[0] = WAIT
    call(plan, x, right, 3 * EVERY)
    assert algorithms(plan) == ordered


def test_a_noisy_report_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of the winner that differ by half: nobody knows which one tells."""
    with torch.no_grad():
        plan = bt.optimize(*made())
    steps = [one for one in program_of(plan).borrow().chosen if isinstance(one, ConvolutionStep)]
    selector, explain = convolution_step.selector(), convolution_step.selector().explain
    for noisy in (False, True):

        def told(step: Any, noisy: bool = noisy) -> Any:
            report: Any = explain(step)
            return type(report)(
                report.problem, report.decision, report.source, report.alternatives, noisy=noisy
            )

        monkeypatch.setattr(type(selector), "explain", lambda _, step, told=told: told(step))
        assert [noisy_choices._is_noisy(one) for one in steps] == [noisy] * len(steps)


@pytest.mark.usefixtures("noisy")
@torch.no_grad()
def test_a_choice_that_opens_while_it_is_about_to_be_compared(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(share=1.0))
    model, x = made()
    right = model(x)
    plan = bt.optimize(model, x)
    now[0] = WAIT
    call(plan, x, right, 2 * EVERY)

    choices = program_of(plan).choices.values()
    reopen = [one for one in choices if not one.is_ordered]
    compared = live_check._compared

    def opened(step: Any, bind_anew: Any) -> None:
        for one in reopen:  # as another thread's call does
            one.reopen()
        compared(step, bind_anew)

    while None in algorithms(plan):
        call(plan, x, right, 1)
    monkeypatch.setattr(live_check, "_compared", opened)
    for _ in range(CALLS):
        call(plan, x, right, 1)
        if None in algorithms(plan):
            break
    assert None in algorithms(plan)
