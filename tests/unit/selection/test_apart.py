"""Work whose result later calls use is no part of a trial's time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_device import FakeDevice
from fake_program import DearComparison, Program

from bestof.selection.trials.trial import set_apart


def packing(program: Program, name: str, packs: float, seconds: float) -> Any:
    """Return an alternative that packs something at each call, as for a further layer."""
    timed = program.function(name, seconds, "same")

    def called(n: int) -> Any:
        program.clock.passes(packs)
        set_apart(packs)
        return timed(n)

    return called


@pytest.mark.parametrize("check", [None, 0.0])
def test_the_fastest_call_wins_whatever_it_packs(program: Program, check: float | None) -> None:
    selector = program.selector(
        [
            ("first", program.function("first", 2.0, "same")),
            ("packed", packing(program, "packed", 9.0, 1.0)),
        ],
        check=check,
        budget=None,
    )
    for _ in range(4):
        selector(1)
    found = selector.explain(1)
    assert found.decision == "packed"
    assert {row.name: row.seconds for row in found.alternatives} == {"first": 2.0, "packed": 1.0}


def test_packing_is_paid_from_the_budget(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESTOF_BUDGET")
    selector = program.selector(
        [
            ("first", program.function("first", 2.0)),
            ("packed", packing(program, "packed", 9.0, 1.0)),
        ]
    )
    while selector.trials < 2:
        selector(1)
    assert selector._knowledge.budget.lost == 9.0


def test_it_is_no_part_of_the_trials_around(program: Program) -> None:
    inner = program.selector([("only", packing(program, "only", 9.0, 1.0))], name="inner")
    inner(1)
    outer = program.selector([("nested", inner), ("plain", program.function("plain", 2.0))])
    for _ in range(4):
        outer(1)
    found = outer.explain(1)
    assert found.decision == "nested"
    assert found.alternatives[0].seconds == 1.0


def test_outside_of_trials_nothing_happens() -> None:
    set_apart(1.0)


def test_more_than_the_trial_took_leaves_nothing(program: Program) -> None:
    def boasts(_n: int) -> None:
        program.clock.passes(1.0)
        set_apart(5.0)

    selector = program.selector([("a", boasts), ("b", program.function("b", 2.0))])
    for _ in range(4):
        selector(1)
    assert selector.explain(1).alternatives[0].seconds == 0.0


@pytest.mark.parametrize("late", [False, True])
def test_packing_is_paid_once_and_is_no_price_of_a_comparison(
    program: Program, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.delenv("BESTOF_BUDGET")
    device = FakeDevice()
    timed = device.function if late else program.function
    packed = timed("packed", 1.0)

    def packing_once(n: int) -> Any:
        if not selector._knowledge.budget.lost:
            program.clock.passes(9.0)
            set_apart(9.0)
        return packed(n)

    selector = program.selector(
        [("first", timed("first", 2.0)), ("packed", packing_once)],
        check=DearComparison(program, 0.5),
        timer=device if late else None,
    )
    while "packed" not in (device.calls if late else program.calls):
        selector(1)
        device.finishes()
        program.clock.passes(1.0)
    selector(1)  # asks the device
    assert selector._knowledge.budget.lost == pytest.approx(9.5)
    assert selector._knowledge.costs.comparison < 3.0  # calls: what it was before the first


def test_it_is_no_part_of_a_coroutine_either(program: Program) -> None:
    async def packed(_n: int) -> str:
        program.clock.passes(10.0)
        set_apart(9.0)
        return "packed"

    async def first(_n: int) -> str:
        program.clock.passes(2.0)
        return "first"

    selector = program.selector([("first", first), ("packed", packed)], budget=None)
    for _ in range(4):
        asyncio.run(selector(1))
    found = selector.explain(1)
    assert {row.name: row.seconds for row in found.alternatives} == {"first": 2.0, "packed": 1.0}
