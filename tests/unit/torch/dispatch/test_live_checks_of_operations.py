"""A planted kernel of any operation is found: a wrong one in its first call, and one that goes
wrong later within a minute of calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_calls import SLOW, plant, small_calls
from torch import Tensor

import bestof
import bestof.torch as integration
from bestof.errors import BestofWarning
from bestof.selection.reports.report import ProblemReport
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore
from bestof.torch.dispatch.convolution.decisions import SHARED
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.dispatch.override import Override
from bestof.torch.ops import table
from bestof.torch.ops.convolution import recognition
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Operation
from bestof.torch.rows.row_selector import row_selector

NAMES = [one.name for one in table.OPERATIONS]
ROUNDED = ["convolution weight gradient", "product", "attention", "layer norm"]
SECONDS = 0.01  # of the run, at each call


def wrong(right: Tensor) -> Tensor:
    return right * 1.1 + 0.1


def rounded_otherwise(right: Tensor) -> Tensor:
    return torch.nextafter(right, torch.full_like(right, torch.inf))


class Case:
    """The calls of one operation in a program that has enabled bestof, with a planted row."""

    def __init__(self, name: str) -> None:
        operator, *arguments = small_calls()[name]
        found = table.operation(name)
        assert found is not None
        self.operation: Operation[Any] = found
        self.fault: Callable[[Tensor], Tensor] = lambda right: right
        self._call = lambda: operator(*arguments)
        self.right = self._call()
        self.seconds = 0.0
        plant(found, lambda right: self.fault(right))

    def call(self) -> Any:
        self.seconds += SECONDS
        return self._call()

    def is_right(self) -> bool:
        """Make a call, and return whether its result is right."""
        got, right = self.call(), self.right
        pairs = [(got, right)] if isinstance(right, Tensor) else zip(got, right, strict=True)
        return all(
            one is None or torch.allclose(one, other, 1e-4, 1e-4, equal_nan=True)
            for one, other in pairs
        )

    @property
    def report(self) -> ProblemReport:
        (problem,) = row_selector(self.operation).selector.report().problems
        return problem

    @property
    def decision(self) -> str | None:
        return self.report.decision


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(recognition, "LEAST_PRODUCTS", 1)
    made = Case(request.param)
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(lambda: made.seconds))
    bestof.use_store(MemoryStore())
    integration.enable()
    return made


def settle(case: Case) -> None:
    for _ in range(50):
        assert case.is_right()
    assert case.decision == "planted", str(case.report)


def test_a_wrong_row_never_answers(case: Case) -> None:
    case.fault = wrong
    with pytest.warns(BestofWarning) as told:
        assert all(case.is_right() for _ in range(100))
    assert len(told) == 1
    assert "'planted' was disqualified: wrong result" in str(told[0].message)
    assert case.decision == "as is"


def test_a_row_that_goes_wrong_later_is_found(case: Case) -> None:
    settle(case)
    case.fault = wrong

    def until_found() -> None:
        end = case.seconds + 60.0
        while case.decision != "as is" and case.seconds < end:
            case.call()

    with pytest.warns(BestofWarning, match="'planted' was disqualified: wrong result") as told:
        until_found()
    assert len(told) == 1
    assert case.decision == "as is"
    assert all(case.is_right() for _ in range(10))
    (row,) = (one for one in case.report.alternatives if one.name == "planted")
    assert (row.status, (row.reason or "")[:12]) == ("disqualified", "wrong result")


@pytest.mark.parametrize("case", ROUNDED, indirect=True)
def test_a_row_that_rounds_otherwise_stays(case: Case) -> None:
    settle(case)
    case.fault = rounded_otherwise
    before = Defaults.live_checks.compared
    for _ in range(3000):
        assert case.is_right()
        if Defaults.live_checks.compared > before + 2:
            break
    assert Defaults.live_checks.compared > before
    assert case.decision == "planted"


@pytest.mark.parametrize("stage", [0, 1])
def test_a_layer_whose_passes_go_wrong_together_is_found(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Planted(ConvolutionLayer):
        """Only im2row with a kept matrix is fast."""

        is_wrong = False

        def _joint_forward(self, *args: Any) -> Any:
            time.sleep(SLOW)
            return super()._joint_forward(*args)

        def _independent_forward(self, *args: Any) -> Any:
            time.sleep(SLOW)
            return super()._independent_forward(*args)

        def _shared_forward(self, *args: Any) -> Any:
            right = super()._shared_forward(*args)
            return right + 1.0 if self.is_wrong and stage == 0 else right

        def _shared_backward(self, *args: Any) -> Any:
            right = super()._shared_backward(*args)
            return (right[0], right[1] + 1.0, right[2]) if self.is_wrong and stage else right

    seconds = 0.0
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(lambda: seconds))
    layer = Planted(tuple(map(Override, PASSES)))
    x, w = random(2, 8, 9, 10), random(16, 8, 3, 3, seed=1)
    problem = ConvProblem.of(x, w, False, (1, 1), (1, 1), (1, 1), 1)
    whole = LayerProblem(problem, True, True)
    gradient = random(*problem.output_shape, seed=2)

    def step() -> None:
        layer.layer(0, whole, x, w, None)
        layer.layer(1, whole, gradient, x, w, "channels_first", (True, True, False))

    for _ in range(300):
        step()
    assert layer.decisions.forward(whole, problem)[0] == SHARED
    layer.is_wrong = True

    def until_found() -> None:
        nonlocal seconds
        while layer.decisions.forward(whole, problem)[0] == SHARED and seconds < 60.0:
            seconds += SECONDS
            step()

    with pytest.warns(BestofWarning, match="'shared im2row' was disqualified: wrong result"):
        until_found()
