"""Work whose result later calls use is no part of a trial's time."""

from __future__ import annotations

from typing import Any

import pytest
from fake_program import Program

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
