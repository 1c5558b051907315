"""What a selector reports about itself: events, log lines, counters."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import Alternative, view
from bestof.errors import BestofWarning
from bestof.selection.duration import duration
from bestof.selection.policies import Rounds
from bestof.selection.reports.overview import net, overview
from bestof.selection.reports.report import Report, report_from_dict
from bestof.selection.state.journal import DecisionEntry, DisqualificationEntry, Journal, TrialEntry
from bestof.selection.state.tuning import new_tuning


def test_every_entry_is_delivered_in_order_and_without_the_lock(program: Program) -> None:
    told: list[object] = []
    held: list[bool] = []

    def listen(entry: object) -> None:
        told.append(entry)
        held.append(selector._knowledge.lock._is_owned())  # type: ignore[attr-defined]  # RLock

    selector = program.selector({"a": 2.0, "b": 1.0}, on_event=listen, rounds=1)
    for _ in range(3):
        selector(1)
    assert told == [
        TrialEntry((1,), "a", 0, 2.0, True),
        TrialEntry((1,), "b", 0, 1.0, True),
        DecisionEntry((1,), "b", "measured"),
    ]
    assert tuple(told) == selector.journal.entries()
    assert not any(held)


def test_what_is_chosen_at_present(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, rounds=1)
    assert selector.chosen((1,)) is None
    selector(1)
    assert selector.chosen((1,)) is None
    selector(1)
    assert selector.chosen((1,)) == "b"
    assert selector.chosen((2,)) is None
    copied = copy.copy(selector)
    assert copied.chosen((1,)) == "b"
    assert selector.race_again((1,))
    assert selector.chosen((1,)) is None
    assert copied.chosen((1,)) == "b"


def test_a_decision_without_a_trial_is_reported_too(program: Program) -> None:
    told: list[object] = []
    program.selector({"a": 1.0, "b": 1.0}, on_event=told.append, policy="fixed:b")(1)
    program.selector({"a": 1.0}, on_event=told.append)(2)
    assert told == [DecisionEntry((1,), "b", "forced"), DecisionEntry((2,), "a", "only")]


def test_a_disqualification_is_reported(program: Program) -> None:
    told: list[object] = []
    selector = program.selector(
        [("a", program.failing("a", ValueError("no"))), ("b", str), ("c", str)],
        on_event=told.append,
    )
    with pytest.warns(BestofWarning):
        selector(1)
    assert told[0] == DisqualificationEntry((1,), "a", "raised ValueError: no")


def test_a_listener_that_raises_is_warned_of_once(program: Program) -> None:
    heard = []

    def listen(entry: object) -> None:
        heard.append(entry)
        raise KeyError("mine")

    selector = program.selector({"a": 2.0, "b": 1.0}, on_event=listen)
    with pytest.warns(BestofWarning, match="on_event raised KeyError: 'mine'") as caught:
        assert [selector(1) for _ in range(5)] == ["a", "b", "a", "b", "b"]
    assert len(caught) == 1
    assert len(heard) == 5


def test_a_listener_may_call_the_selector(program: Program) -> None:
    again: list[str] = []

    def listen(entry: object) -> None:
        if isinstance(entry, DecisionEntry) and not again:
            again.append(selector(1))

    selector = program.selector({"a": 2.0, "b": 1.0}, on_event=listen)
    for _ in range(5):
        selector(1)
    assert again == ["b"]


def test_one_line_a_decision(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bestof")
    selector = program.selector({"a": 0.003, "b": 0.001}, name="copy")
    for _ in range(9):
        selector(1)
    program.selector({"a": 1.0}, name="single")(1)
    assert [record.getMessage() for record in caplog.records] == [
        "BestOf('copy'), problem (1,): b (measured), saves 2.00 ms a call over 'a'",
        "BestOf('single'), problem (1,): a (only)",
    ]


def test_the_price_of_finding_out(program: Program) -> None:
    selector = program.selector({"a": 3.0, "b": 1.0}, rounds=2)
    for problem in (1, 2):
        for _ in range(6):
            selector(problem)
    report = selector.report()
    assert (report.trials, report.trial_seconds, report.loss_seconds) == (8, 16.0, 8.0)


def test_savings_of_settled_calls(program: Program) -> None:
    selector = program.selector({"a": 3.0, "b": 1.0}, rounds=2)
    for problem in (1, 2):
        for _ in range(10):
            selector(problem)
    report = selector.report()
    assert (report.settled_calls, report.saved_seconds) == (12, 24.0)
    assert "12 settled calls saved about 24.0 s against the first alternative" in str(report)
    content = report_from_dict(json.loads(json.dumps(Report((report,)).to_dict()))).selectors[0]
    assert content == report
    assert "saved 24.0 s in 12 settled calls" in view.render(Report((report,)))
    assert "12 settled calls saved about 24.0 s" in view.render(Report((report,)), "html")


def test_evicted_and_reopened_problems_stay_counted(program: Program) -> None:
    selector = program.selector({"a": 3.0, "b": 1.0}, max_problems=4)
    for problem in range(30):
        for _ in range(6):
            selector(problem)
    assert (selector.settled_calls, selector.saved_seconds) == (60, 120.0)
    with selector._knowledge.lock:
        tuning = new_tuning(
            (29,),
            *(selector._knowledge.alternatives, selector._knowledge.stages),
            *(Rounds(), selector._knowledge.refused),
        )
        selector._knowledge.reopen(tuning)
    assert (selector.settled_calls, selector.saved_seconds) == (60, 120.0)


@pytest.mark.parametrize("stages", [0, 2])
def test_rows_agree_with_the_totals_after_a_race_was_run_again(
    program: Program, stages: int
) -> None:
    functions = {"a": program.function("a", 3.0), "b": program.function("b", 1.0)}
    pairs: list[Any] = [(name, [one] * stages or one) for name, one in functions.items()]
    selector = program.selector(pairs, drift=True)

    def call() -> None:
        _ = [selector(stage, 1) for stage in range(stages)] if stages else selector(1)

    for calls in (20, 1, 20):  # settled, searched again, settled again
        for _ in range(calls):
            call()
        report = selector.report()
        (row,), total = overview(Report((report,))), net(Report((report,)))
        assert row.calls == total.calls == report.settled_calls / max(1, stages) > 0
        assert row.saved == total.saved == report.saved_seconds == report.problems[0].saved
        assert view.render(Report((report,)), "html").count(f">{duration(row.saved)}<") > 1
        if selector.chosen((1,)):
            assert selector.race_again((1,))


def test_a_pass_of_a_group_saves_once(program: Program) -> None:
    pairs = [
        (name, [program.function(name, seconds), program.function(name, 1.0)])
        for name, seconds in (("a", 3.0), ("b", 1.0))
    ]
    selector = program.selector(pairs)
    for _ in range(9):
        selector(0, 1)
        selector(1, 1)
    assert (selector.settled_calls, selector.saved_seconds) == (10, 10.0)


def test_what_was_ordered_may_cost(program: Program) -> None:
    store = DictStore()
    for _ in range(4):
        program.selector({"a": 1.0, "b": 3.0}, store=store)(1)
    first = program.selector({"a": 1.0, "b": 3.0}, store=store)
    for _ in range(4):
        first(1)
    store.pins["it"] = "b"
    pinned = program.selector({"a": 1.0, "b": 3.0}, store=store)
    for _ in range(6):
        pinned(1)
    assert (pinned.settled_calls, pinned.saved_seconds) == (5, -10.0)
    assert "5 settled calls cost about 10.0 s against the first alternative" in str(pinned.report())


def test_nothing_is_claimed_where_the_first_was_not_measured(program: Program) -> None:
    selector = program.selector(
        [Alternative("a", program.failing("a", ValueError("no"))), ("b", str), ("c", str)]
    )
    with pytest.warns(BestofWarning):
        selector(1)
    for _ in range(8):
        selector(1)
    assert selector.settled_calls > 0
    assert selector.saved_seconds == 0.0
    assert "settled calls" not in str(selector.report())


def test_an_alternative_that_left_early_is_shown_as_pruned(program: Program) -> None:
    selector = program.selector({"a": 1.0, "b": 50.0, "c": 1.5}, policy="rounds:rounds=6")
    for _ in range(30):
        selector(1)
    rows = selector.explain(1).alternatives
    assert [(row.name, row.status, row.trials) for row in rows] == [
        ("a", "chosen", 6), ("b", "pruned", 4), ("c", "measured", 6),
    ]  # fmt: skip


def test_the_journal_is_bounded() -> None:
    journal = Journal(limit=3)
    for number in range(5):
        journal.add(DecisionEntry(number, "a", "only"))
    assert [entry.problem for entry in journal.entries()] == [2, 3, 4]
    assert not journal.undelivered
