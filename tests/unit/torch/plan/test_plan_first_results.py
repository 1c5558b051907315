"""The first result of each algorithm on each problem of a plan is compared in the call that tries
it: kernels that were wrong from the beginning answer no call, and are told once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plan_regimes import FAULTS, build, example
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.selection import use_store
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.steps import convolution_step, raced_step
from bestof.torch.plan.steps.compared_step import ComparedStep

CALLS = 300  # enough for every race of these models

PLANTED = [
    ("mlp", "layers: row"),
    ("gated", "layers: element"),
    ("convolutions", "layers: scale"),  # one of them pools
    ("norms behind", "layers: row"),  # with residuals, where the results lie
    ("norms behind", "norms: scale"),  # likewise
    ("sum", "norms: element"),
    ("attention", "norms: row"),
    ("norm", "nothing written"),
]


@pytest.fixture(autouse=True)
def own_selectors() -> Iterator[None]:
    """What planted kernels teach the selectors of the process must end with each test."""
    selectors = convolution_step.selector, raced_step.selector
    for one in selectors:
        one.cache_clear()
    yield
    for one in selectors:
        one.cache_clear()


def algorithms(plan: OptimizedModel) -> set[str | None]:
    planned = next(reversed(plan._programs.values()))
    return {one.algorithm for one in planned.program.choices.values()}


def hold_right(plan: OptimizedModel, x: Tensor, right: Tensor) -> None:
    """Call a plan until all choices are settled; each result must be right."""
    for _ in range(CALLS):
        torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)
        if None not in algorithms(plan):
            break
    assert None not in algorithms(plan)


def told(warned: Any) -> list[str]:
    return [str(one.message) for one in warned if "was disqualified: wrong" in str(one.message)]


@torch.no_grad()
@pytest.mark.parametrize(("name", "fault"), PLANTED)
def test_a_wrong_kernel_answers_no_call(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shape = build(name, torch.float32)
    x = example("normal", shape, torch.float32)
    right = model(x)
    FAULTS[fault][1](monkeypatch)
    with pytest.warns(BestofWarning) as warned:
        hold_right(bt.optimize(model, x, tune=False), x, right)
    assert told(warned)
    assert set(Counter(told(warned)).values()) == {1}


@torch.no_grad()
def test_a_tuned_plan_has_no_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = build("mlp", torch.float32)
    x = example("normal", shape, torch.float32)
    FAULTS["layers: row"][1](monkeypatch)
    store = MemoryStore()
    use_store(store)
    try:
        with pytest.warns(BestofWarning, match=r"problem .* linear .* was disqualified: wrong"):
            plan = bt.optimize(model, x)
        assert algorithms(plan) == {"pytorch"}
        torch.testing.assert_close(plan(x), model(x))
        wrong = [
            one.disqualified
            for record in store.records()
            for one in record.evidence
            if one.alternative not in ("pytorch", "onednn")
        ]
    finally:
        use_store(None)
    assert len(wrong) > 1
    assert all(one is not None and one.startswith("wrong result: is off by") for one in wrong)


@torch.no_grad()
def test_a_shape_that_a_call_plans_has_no_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = build("norms behind", torch.float32)
    plan = bt.optimize(model, example("normal", shape, torch.float32))
    x = torch.randn(5, *shape[1:])
    right = model(x)
    FAULTS["layers: row"][1](monkeypatch)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(20):  # the model answers the first of them
            torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)
        hold_right(plan, x, right)
    assert len(plan._programs) == 2
    assert told(warned)


@torch.no_grad()
def test_no_algorithm_is_compared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, met = ComparedStep.judged, Counter[tuple[Any, str]]()

    def counted(self: ComparedStep, name: str, *rest: Any, **named: Any) -> Any:
        met[self.problem, name] += 1
        return judge(self, name, *rest, **named)

    monkeypatch.setattr(ComparedStep, "judged", counted)
    monkeypatch.setattr(Defaults.live_checks, "is_on", False)
    model, shape = build("norms before", torch.float32)
    x = example("normal", shape, torch.float32)
    plan = bt.optimize(model, x, tune=False)
    hold_right(plan, x, model(x))
    assert len(met) > 3
    assert set(met.values()) == {1}
    for _ in range(10):
        plan(x)
    assert sum(met.values()) == len(met)


@torch.no_grad()
@pytest.mark.parametrize("regime", ["normal", "nan", "all nan", "0", "1e25", "+1e6"])
def test_a_right_kernel_passes_whatever_its_operands_are(regime: str) -> None:
    """Of zeros, or NaN, normal numbers tell what they hide."""
    for name in ("mlp", "norms behind", "convolutions"):
        model, shape = build(name, torch.float32)
        x = example(regime, shape, torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error", BestofWarning)
            plan = bt.optimize(model, x, tune=False)
            for _ in range(CALLS):
                plan(x)
                if None not in algorithms(plan):
                    break
        assert None not in algorithms(plan)


@torch.no_grad()
def test_a_comparison_is_booked_as_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Defaults.budget, "is_on", True)
    before = Defaults.budget.lost
    model, x = nn.Linear(24, 12).eval(), torch.randn(4, 24)
    plan = bt.optimize(model, x, tune=False)
    for _ in range(CALLS):
        plan(x)
    assert Defaults.budget.lost > before
