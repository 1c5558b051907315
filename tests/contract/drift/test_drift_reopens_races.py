"""When the time of a winner drifts, its race is run again; what counts as drift."""

from __future__ import annotations

import json
import logging
from itertools import pairwise

import pytest
from drifting_machine import WINDOW, Machine, calls, drifts, settled

from bestof import BestOf, view
from bestof.selection.reports.report import Report, report_from_dict
from bestof.selection.state.journal import DecisionEntry, DriftEntry, TrialEntry


def test_a_winner_that_slows_loses_to_one_that_did_not() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    machine.seconds["b"] = 4.0
    calls(selector)
    assert drifts(selector) == [("b", 1.0, 4.0)]
    assert (selector.explain(1).decision, selector.explain(1).source) == ("c", "measured")
    samples = {row.name: row.seconds for row in selector.explain(1).alternatives}
    assert samples == {"a": 3.0, "b": 4.0, "c": 2.0}


def test_a_reopened_race_has_the_winner_in_front_and_fresh_samples() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    machine.seconds["b"] = 1.5
    while selector.explain(1).settled:
        machine.calls.clear()
        selector(1)
    assert machine.calls == ["b"]
    assert all(row.trials == 0 for row in selector.explain(1).alternatives)
    machine.calls.clear()
    calls(selector, 9)
    assert machine.calls == ["b", "a", "c"] * 3
    assert selector.explain(1).decision == "b"


def test_a_near_tie_stays_with_the_winner() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, policy="race")
    machine.seconds.update(a=2.0, b=2.0)
    calls(selector, 2 * WINDOW)
    assert len(drifts(selector)) == 1
    assert selector.explain(1).decision == "b"


def test_a_machine_that_slows_as_a_whole_races_once() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    for name in machine.seconds:
        machine.seconds[name] *= 3
    calls(selector, 20 * WINDOW)
    assert drifts(selector) == [("b", 1.0, 3.0)]
    assert selector.explain(1).decision == "b"


def test_a_decision_made_on_a_busy_machine_is_repaired_and_once() -> None:
    machine = Machine(a=30.0, b=60.0)
    selector = settled(machine)
    assert selector.explain(1).decision == "a"
    machine.seconds.update(a=3.0, b=1.0)
    calls(selector, 20 * WINDOW)
    assert drifts(selector) == [("a", 30.0, 3.0)]
    assert selector.explain(1).decision == "b"


def test_a_winner_that_is_always_faster_outside_of_races_races_once_for_that() -> None:
    machine = Machine(a=3.0, b=4.0)
    names = machine.calls

    def warm_caches() -> None:
        if names[-2:] == ["a", "a"]:
            machine.now -= 2.0

    machine.inside = warm_caches
    selector = settled(machine)
    calls(selector, 40 * WINDOW)
    assert drifts(selector) == [("a", 3.0, 1.0)]
    assert selector.explain(1).decision == "a"


def test_a_drift_that_races_do_not_repair_is_raced_ever_more_seldom() -> None:
    machine = Machine(a=1000.0, b=1.0)
    selector = settled(machine)

    def ever_slower() -> None:
        machine.seconds["b"] *= 1.01

    machine.inside = ever_slower
    reopened_at = []
    for call in range(60 * WINDOW):
        if selector(1) == "b" and machine.seconds["b"] > 500:
            machine.seconds["b"] = 1.0
        if len(drifts(selector)) > len(reopened_at):
            reopened_at.append(call)
    gaps = [later - earlier for earlier, later in pairwise(reopened_at)]
    assert 3 <= len(reopened_at) <= 8
    assert gaps[-1] > 4 * gaps[0]


def test_a_rise_within_the_hysteresis_is_no_drift() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    machine.seconds["b"] = 1.2
    calls(selector, 10 * WINDOW)
    assert drifts(selector) == []
    assert selector.trials == 6


def test_a_burst_is_no_drift() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    for _ in range(20):
        machine.seconds["b"] = 50.0
        calls(selector, 4 * 8)
        machine.seconds["b"] = 1.0
        calls(selector, WINDOW)
    assert drifts(selector) == []


def test_each_problem_has_a_drift_of_its_own() -> None:
    machine = Machine(a=3.0, b=1.0)
    slow = machine.alternative("b")

    def b(problem: int) -> str:
        if problem == 2:
            machine.now += 9.0
        return slow(problem)

    selector = BestOf(
        "two", [("a", machine.alternative("a")), ("b", b)], lambda x: x % 2, clock=machine.clock
    )
    for _ in range(50):
        selector(0)
        selector(1)
    for _ in range(WINDOW):
        selector(2)
        selector(1)
    assert [
        entry.problem for entry in selector.journal.entries() if isinstance(entry, DriftEntry)
    ] == [0]
    assert (selector.explain(0).decision, selector.explain(1).decision) == ("a", "b")


def test_drift_is_reported_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bestof")
    heard: list[object] = []
    machine = Machine(a=0.003, b=0.001)
    selector = settled(machine, on_event=heard.append)
    machine.seconds["b"] = 0.004
    calls(selector)
    kinds = [entry for entry in heard if not isinstance(entry, TrialEntry)]
    assert [type(entry) for entry in kinds] == [DecisionEntry, DriftEntry, DecisionEntry]
    assert drifts(selector) == [("b", pytest.approx(0.001), pytest.approx(0.004))]
    story = (
        "b had become slower, 4.00 ms against the 1.00 ms at which it won; the race was reopened"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "BestOf('drifting'), problem 1: b (measured), saves 2.00 ms a call over 'a'",
        f"BestOf('drifting'), problem 1: drift: {story}",
        "BestOf('drifting'), problem 1: a (measured)",
    ]
    assert f"earlier {story}" in str(selector.explain(1))
    assert f"earlier {story}" in str(selector.report())
    told = Report((selector.report(),))
    assert report_from_dict(json.loads(view.render(told, "json"))) == told
    assert f"[1] {story}" in view.render(told)
    for whole in (view.render(told, whole=True), view.render(told, "html")):
        assert "[measured, 1 drift]" in whole
    assert story in view.render(told, "html")
