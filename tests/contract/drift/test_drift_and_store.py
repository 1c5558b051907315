"""Which decisions are watched for drift, what the store keeps, and what stays out."""

from __future__ import annotations

from typing import Any

import pytest
from drifting_machine import WINDOW, Machine, calls, drifts, settled

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning
from bestof.selection.passes import NEVER
from bestof.selection.policies import Fixed, Race, Window
from bestof.selection.store.memory import MemoryStore


def test_a_decision_from_the_store_drifts_too_and_the_new_one_is_kept() -> None:
    store = MemoryStore()
    machine = Machine(a=3.0, b=1.0)
    settled(machine, store=store)
    machine.seconds.update(a=30.0, b=40.0)
    again = machine.selector(store=store)
    again(1)
    assert again.explain(1).source == "stored"
    calls(again, 2 * WINDOW)
    assert drifts(again) == [("b", 1.0, 40.0)]
    (record,) = store.records()
    assert record.decision == "a"
    assert {one.alternative: one.samples for one in record.evidence} == {
        "a": (30.0,) * 3,
        "b": (40.0,) * 3,
    }


def test_half_a_reopened_race_leaves_the_store_as_it_was() -> None:
    store = MemoryStore()
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, store=store)
    before = store.records()
    machine.seconds["b"] = 4.0
    while selector.explain(1).settled:
        selector(1)
    calls(selector, 3)
    selector.flush()
    assert store.records() == before


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Fixed("b")},
        {"policy": Window(0, 100)},
        {"drift": False},
        {"check": lambda expected, got: True, "check_every": 5},
    ],
    ids=["fixed", "window", "switched off", "watched"],
)
def test_unwatched_decisions_are_not_raced_again(options: dict[str, Any]) -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, **options)
    machine.seconds["b"] = 40.0
    calls(selector, 4 * WINDOW)
    assert drifts(selector) == []
    assert selector.explain(1).decision == "b"


def test_orders_are_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.pin("drifting", "b")
    machine = Machine(a=3.0, b=1.0)
    pinned = settled(machine, store=store)
    monkeypatch.setenv("BESTOF_FORCE", "drifting=b")
    forced = settled(machine)
    machine.seconds["b"] = 40.0
    for selector in (pinned, forced):
        calls(selector, 2 * WINDOW)
        assert drifts(selector) == []
        assert selector._settled[1].sample_at == NEVER


def test_an_environment_variable_switches_it_off_and_an_argument_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(a=3.0, b=1.0)
    monkeypatch.setenv("BESTOF_DRIFT", "off")
    silent, told = settled(machine), settled(machine, drift=True)
    monkeypatch.setenv("BESTOF_DRIFT", "on")
    usual = settled(machine)
    machine.seconds["b"] = 40.0
    for selector in (silent, told, usual):
        calls(selector)
    assert [len(drifts(selector)) for selector in (silent, told, usual)] == [0, 1, 1]


def test_a_disqualified_alternative_does_not_come_back() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)

    def broken(x: int) -> str:
        machine.calls.append("broken")
        raise OSError("gone")

    pairs = [*((name, machine.alternative(name)) for name in "abc"), ("broken", broken)]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    with pytest.warns(BestofWarning, match="'broken' was disqualified"):
        calls(selector, 20)
    machine.seconds["b"] = 9.0
    calls(selector, 2 * WINDOW)
    assert len(drifts(selector)) == 1
    assert selector.explain(1).decision == "c"
    assert machine.calls.count("broken") == 1
    reason = selector.explain(1).alternatives[-1].reason
    assert reason is not None
    assert reason.startswith("raised OSError: gone, on 20")


def test_an_alternative_that_no_longer_applies_is_not_raced() -> None:
    machine = Machine(a=3.0, b=1.0)
    applies = [True]
    pairs = [
        Alternative("a", machine.alternative("a"), supports=lambda n: applies[0]),
        ("b", machine.alternative("b")),
    ]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    calls(selector, 9)
    applies.clear()
    applies.append(False)
    machine.seconds["b"] = 9.0
    calls(selector, 2 * WINDOW)
    assert drifts(selector) == []
    assert selector.explain(1).decision == "b"


def test_a_policy_that_breaks_when_it_starts_again_costs_no_call() -> None:
    class Once:
        starts = 0

        def start(self, names: Any) -> Any:
            self.starts += 1
            if self.starts > 2:  # the first is the one of the constructor
                raise RuntimeError("used up")
            return Race().start(names)

    machine = Machine(a=3.0, b=1.0)
    selector = machine.selector(policy=Once())
    calls(selector, 20)
    machine.seconds["b"] = 9.0
    with pytest.warns(
        BestofWarning, match="its drift is no longer watched: RuntimeError: used up"
    ) as caught:
        calls(selector, 4 * WINDOW)
    assert len(caught) == 1
    assert selector.explain(1).decision == "b"
