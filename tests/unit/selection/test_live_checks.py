"""Settled results are compared now and then, within a share of the time of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_program import Clock
from test_verifier import RIGHT, Names, make

from bestof.errors import BestofWarning
from bestof.selection.state.live_checks import SHARE, LiveChecks
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore

ANSWERS = {"as is": (4e-3, RIGHT), "native": (1e-3, RIGHT), "other": (2e-3, RIGHT)}


class Slow(Names):
    """What it expects takes as long as the first alternative."""

    clock: Clock

    def expect(self, stage: int, args: tuple[Any, ...]) -> str:
        self.clock.passes(4e-3)
        return super().expect(stage, args)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Defaults, "live_checks", LiveChecks(clock))
    return clock


@pytest.fixture
def verifier(clock: Clock) -> Slow:
    verifier = Slow()
    verifier.clock = clock
    return verifier


def run(call: Callable[[], Any], clock: Clock, seconds: float) -> set[Any]:
    """Return what the calls of so many seconds gave."""
    end, found = clock() + seconds, set()
    while clock() < end:
        found.add(call())
    return found


@pytest.mark.parametrize("stages", [0, 2])
def test_one_that_turns_wrong_is_found_within_a_minute(
    clock: Clock, verifier: Slow, stages: int
) -> None:
    store = MemoryStore()
    selector = make(ANSWERS, verifier, stages, clock, drift=True, store=store)

    def call() -> Any:
        return [selector(stage, 1) for stage in range(stages)][-1] if stages else selector(1)

    run(call, clock, 30.0)
    assert selector.explain(1).decision == "native"
    verifier.wrong = {"native"}
    with pytest.warns(BestofWarning, match="'native' was disqualified: wrong result") as told:
        assert run(call, clock, 60.0) == {RIGHT}
    assert len(told) == 1
    assert selector.explain(1).decision == "other"
    again = make(ANSWERS, Names(), stages, Clock(), store=store)
    for _ in range(20):
        [again(stage, 1) for stage in range(stages)] if stages else again(1)
    assert again.explain(1).decision == "other"


def test_the_store_knows_before_the_next_decision(clock: Clock, verifier: Slow) -> None:
    store = MemoryStore()
    selector = make(ANSWERS, verifier, 0, clock, drift=True, store=store)
    run(lambda: selector(1), clock, 30.0)
    verifier.wrong = {"native"}

    def until_found() -> None:
        while selector.explain(1).decision == "native":
            selector(1)

    with pytest.warns(BestofWarning, match="'native'"):
        until_found()
    (record,) = store.records("verified")
    assert record.decision != "native"
    (item,) = (one for one in record.evidence if one.alternative == "native")
    assert "it turned wrong" in (item.disqualified or "")


def test_comparisons_take_one_per_cent_of_the_time(clock: Clock, verifier: Slow) -> None:
    selector = make(ANSWERS, verifier, 0, clock, drift=True)
    run(lambda: {selector(problem) for problem in range(5)}.pop(), clock, 300.0)
    checks = Defaults.live_checks
    assert 0.5 * SHARE < checks.spent / checks.seconds <= SHARE
    assert checks.spent == pytest.approx(5e-3 * checks.compared)


def test_each_item_has_its_turn_beside_dear_ones() -> None:
    clock = Clock()
    checks, compared = LiveChecks(clock), {"dear": 0, "cheap": 0}
    for _ in range(100_000):
        clock.passes(0.01)
        for item, cost in (("dear", 0.1), ("cheap", 0.001)):
            if checks.is_due(item, cost):
                checks.book(item, cost)
                compared[item] += 1
    assert compared["dear"] > 80
    assert compared["cheap"] > 80
    assert checks.spent <= SHARE * checks.seconds


def test_they_can_be_switched_off(clock: Clock, verifier: Slow) -> None:
    Defaults.live_checks.is_on = False
    selector = make(ANSWERS, verifier, 0, clock, drift=True)
    run(lambda: selector(1), clock, 60.0)
    assert verifier.judged == [("native", 0), ("other", 0)]


def test_a_comparison_without_memory_lets_the_winner_answer(clock: Clock, verifier: Slow) -> None:
    selector = make(ANSWERS, verifier, 0, clock, drift=True)
    run(lambda: selector(1), clock, 1.0)

    def fails(*_: Any) -> Any:
        raise RuntimeError("no memory")

    verifier.expect = fails  # type: ignore[method-assign]
    before = Defaults.live_checks.compared
    assert run(lambda: selector(1), clock, 60.0) == {RIGHT}
    assert Defaults.live_checks.compared > before
