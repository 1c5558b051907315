"""Settled steps of plans are compared now and then: a kernel that goes wrong is found and replaced
in the running plan."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_regimes import build, example, settle_natively
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.selection import Fixed, use_policy, use_store
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore
from bestof.torch.plan import optimized as optimizing
from bestof.torch.plan.algorithms.algorithm import Bound
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.algorithms.product import Product
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run import live_check, program
from bestof.torch.plan.steps import convolution_step
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.raced_step import RacedStep
from bestof.torch.plan.steps.row_step import RowStep

EVERY = 16  # calls of a binding between two questions for a comparison


class Fault:
    """A fault of all native kernels of plans, which begins when a test says so."""

    def __init__(self) -> None:
        self.is_there = False

    def damaging(self, run: Callable[[], object], out: Tensor) -> Callable[[], None]:
        def damaged() -> None:
            run()
            if self.is_there:
                out[-1].mul_(1.2)

        return damaged


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Plant a fault that is not there yet."""
    planted = Fault()
    for kind in (Native, Product):
        bind: Any = kind.bind

        def bound(row: Any, placed: Any, bind: Any = bind) -> Bound:
            one = bind(row, placed)
            out = row.writes_to(placed)
            return Bound(planted.damaging(one.run, out), one.packed)

        monkeypatch.setattr(kind, "bind", bound)
    make, computed = RacedStep.__init__, RowStep._computed

    def made(self: Any, choice: Any, pytorch: Any, native: Any, *rest: Any, **named: Any) -> None:
        make(self, choice, pytorch, planted.damaging(native, rest[1]), *rest, **named)

    def by_row(self: RowStep, row: Any) -> Any:
        run = computed(self, row)
        return lambda operands: run(operands) * (1.2 if planted.is_there else 1.0)

    monkeypatch.setattr(RacedStep, "__init__", made)
    monkeypatch.setattr(RowStep, "_computed", by_row)
    return planted


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The account is asked in the same calls everywhere, and allows each comparison."""
    monkeypatch.setattr(live_check, "calls_between", lambda *_: EVERY)
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(share=1e9))
    convolution_step.selector.cache_clear()
    yield
    convolution_step.selector.cache_clear()


def algorithms(plan: OptimizedModel) -> set[str | None]:
    planned = next(reversed(plan._programs.values()))
    return {one.algorithm for one in planned.program.choices.values()}


def call(plan: OptimizedModel, x: Tensor, times: int) -> None:
    for _ in range(times):
        plan(x)


def hold_replaced(plan: OptimizedModel, x: Tensor, right: Tensor) -> None:
    """Within a few rounds, all kernels are PyTorch's, and each is told once."""
    with pytest.warns(BestofWarning) as warned:
        call(plan, x, 20 * EVERY)
    torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)
    assert not {"native", "convgemm", "blocked"} & algorithms(plan)
    told = [str(one.message) for one in warned]
    assert all("is off by" in one for one in told)
    assert len(set(told)) == len(told)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mlp", "convolutions", "norms behind", "gated", "attention"])
def test_a_kernel_that_goes_wrong_is_replaced(
    name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    model, shape = build(name, torch.float32)
    x = example("normal", shape, torch.float32)
    right, plan = model(x), bt.optimize(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        for _ in range(10 * EVERY):
            torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)
    assert Defaults.live_checks.compared >= 10
    fault.is_there = True
    hold_replaced(plan, x, right)


@torch.no_grad()
def test_an_interrupt_does_not_end_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    model, shape = build("mlp", torch.float32)
    x = example("normal", shape, torch.float32)
    plan, ask = bt.optimize(model, x), program.with_live_check

    def interrupted(*_: Any) -> Any:
        monkeypatch.setattr(program, "with_live_check", ask)
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "with_live_check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(plan, x, 2 * EVERY)
    before = Defaults.live_checks.compared
    call(plan, x, 2 * EVERY)
    assert Defaults.live_checks.compared > before


@torch.no_grad()
def test_a_row_that_goes_wrong_is_replaced(fault: Fault) -> None:
    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(x - 1)

    x = torch.randn(512, 1031)
    use_policy("fixed:native")
    try:
        plan = bt.optimize(Gelu().eval(), x)
        assert algorithms(plan) == {"native"}
    finally:
        use_policy(None)
    fault.is_there = True
    with pytest.warns(BestofWarning, match="native"):
        call(plan, x, 2 * EVERY)
    assert algorithms(plan) == {"as is"}
    torch.testing.assert_close(plan(x), F.gelu(x - 1))


@torch.no_grad()
def test_the_store_knows_what_went_wrong(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_step, "_POLICY", Fixed("blocked"))
    store, model, x = MemoryStore(), nn.Linear(24, 12).eval(), torch.randn(9, 24)
    use_store(store)
    try:
        plan = bt.optimize(model, x)
        assert algorithms(plan) == {"blocked"}
        fault.is_there = True
        with pytest.warns(BestofWarning, match="'blocked' was disqualified: wrong result: is off"):
            call(plan, x, EVERY)
        wrong = {
            one.alternative: one.disqualified
            for record in store.records()
            for one in record.evidence
        }
    finally:
        use_store(None)
    assert (wrong["blocked"] or "").startswith("wrong result: is off by")
    assert algorithms(plan) == {"pytorch"}


@torch.no_grad()
def test_other_threads_get_the_other_kernel(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a binding of its own."""
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    model, x = nn.Linear(24, 12).eval(), torch.randn(9, 24)
    plan, gate = bt.optimize(model, x), threading.Barrier(3)
    results: list[Tensor] = []

    def run() -> None:
        with torch.no_grad():
            for _ in range(2):
                gate.wait()
                call(plan, x, 2 * EVERY)
            gate.wait()
            results.append(plan(x))

    threads = [threading.Thread(target=run) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        fault.is_there = True
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(results) == 3
    for got in results:
        torch.testing.assert_close(got, model(x))


@torch.no_grad()
def test_comparisons_stay_within_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    checks = LiveChecks(clock)
    monkeypatch.setattr(Defaults, "live_checks", checks)
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    model, shape = build("mlp", torch.float32)
    x = example("normal", shape, torch.float32)
    plan = bt.optimize(model, x)
    call(plan, x, 200 * EVERY)
    assert checks.compared > 2
    assert checks.spent <= 0.01 * checks.seconds + 2e-3  # a comparison takes 1 ms of this clock
    checks.is_on, before = False, checks.compared
    call(plan, x, 50 * EVERY)
    assert checks.compared == before


@torch.no_grad()
def test_steps_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    met: list[Any] = []

    def complaint(self: ComparedStep) -> None:
        met.append(self.problem)

    monkeypatch.setattr(ComparedStep, "complaint", complaint)
    model, shape = build("norms before", torch.float32)
    x = example("normal", shape, torch.float32)
    plan = bt.optimize(model, x)
    count = len(next(iter(plan._programs.values())).program.choices)
    call(plan, x, count * EVERY)
    assert len(met) == count > 4
    plan.release()
    met.clear()
    call(plan, x, count * EVERY)
    assert {type(one).__name__ for one in met} == {"RacedProblem"}  # layers keep no weights


@torch.no_grad()
def test_a_call_succeeds_where_memory_for_a_comparison_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizing, "tune", settle_natively)
    model, shape = build("norms behind", torch.float32)
    x = example("normal", shape, torch.float32)
    right, plan = model(x), bt.optimize(model, x)

    def short(*_: Any, **__: Any) -> Any:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(ComparedStep, "judged", short)
    for _ in range(20 * EVERY):
        torch.testing.assert_close(plan(x), right, rtol=1e-4, atol=1e-4)
    assert Defaults.live_checks.compared > 5
