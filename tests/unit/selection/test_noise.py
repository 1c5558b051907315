"""Noisy decisions, unsettled problems, mixtures and inner near-ties: reports and searches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_program import Clock, DictStore, Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning
from bestof.selection import Window
from bestof.selection.reports.report import Report, report_from_dict
from bestof.selection.state import registry
from bestof.selection.state.journal import TrialEntry
from bestof.selection.state.noise import is_noisy
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence
from bestof.selection.store.sqlite import SqliteStore


def evidence(name: str, *samples: float, disqualified: str | None = None) -> Evidence:
    return Evidence(name, "1", samples, disqualified)


@pytest.mark.parametrize(
    ("chosen", "rival", "noisy"),
    [
        ((1.0, 1.0, 1.0), (1.5, 1.5, 1.5), False),
        ((9.0, 1.0, 1.0), (9.0, 1.5, 1.5), False),  # slow first calls
        ((35.0, 36.0, 37.0), (12.0, 80.0, 90.0), True),  # the rival was once three times faster
        ((1.0, 1.0, 3.0), (1.5, 1.5, 1.5), True),  # wide, and the rival is near
        ((1.0, 1.0, 3.0), (5.0, 5.0, 5.0), False),  # wide, and the rival is far
        ((1.0, 1.0, 1.0), (), False),
        ((153.0, 53.0), (400.0,), True),  # two calls that differ, wherever the rival is
        ((1.1, 1.0), (400.0,), False),
    ],
)
def test_which_decisions_are_noisy(
    chosen: tuple[float, ...], rival: tuple[float, ...], noisy: bool
) -> None:
    assert is_noisy([evidence("a", *chosen), evidence("b", *rival)], "a") is noisy
    assert not is_noisy([evidence("a", *chosen), evidence("b", *rival)], None)
    assert not is_noisy([evidence("a", *chosen), evidence("b", *rival, disqualified="no")], "a")


def busy(clock: Clock, times: dict[str, list[float]], store: object, name: str = "it") -> BestOf:
    """A selector whose alternatives take the listed seconds in turn, then the last of them for
    good."""

    def alternative(name: str) -> Alternative:
        def called(x: int) -> str:
            clock.passes(times[name].pop(0) if len(times[name]) > 1 else times[name][0])
            return name

        return Alternative(name, called, depends=["the same code, whatever it takes"])

    return BestOf(
        name,
        [alternative(one) for one in ("a", "b")],
        lambda x: x,
        policy="rounds:rounds=3",
        clock=clock,
        store=store,
    )


def test_a_noisy_decision_is_marked_and_verified_early_in_the_next_run() -> None:
    store = MemoryStore()
    first = busy(Clock(), {"a": [35.0, 36.0, 37.0], "b": [12.0, 80.0, 90.0]}, store)
    for _ in range(6):
        first(0)
    report = first.explain(0)
    assert (report.decision, report.noisy) == ("a", True)
    assert str(report).startswith("0: a (measured, noisy)")
    again = report_from_dict(json.loads(json.dumps(Report((first.report(),)).to_dict())))
    assert again.selectors[0].problems[0].noisy
    second = busy(Clock(), {"a": [35.0], "b": [12.0]}, store)
    answers = [second(0) for _ in range(8)]
    assert answers == ["a", "b"] * 3 + ["b"] * 2  # the stored decision first
    report = second.explain(0)
    assert (report.decision, report.source, report.noisy) == ("b", "measured", False)
    third = busy(Clock(), {"a": [35.0], "b": [12.0]}, store)
    assert [third(0) for _ in range(3)] == ["b"] * 3
    assert third.explain(0).source == "stored"


def test_a_verification_that_is_cut_short_leaves_the_record() -> None:
    store = MemoryStore()
    first = busy(Clock(), {"a": [35.0, 36.0, 37.0], "b": [12.0, 80.0, 90.0]}, store)
    for _ in range(6):
        first(0)
    kept = store.records()
    second = busy(Clock(), {"a": [35.0], "b": [12.0]}, store)
    second(0)
    second.flush()
    assert store.records() == kept


def test_a_quiet_decision_starts_settled() -> None:
    store = MemoryStore()
    for source in ("measured", "stored"):
        selector = busy(Clock(), {"a": [2.0], "b": [1.0]}, store)
        for _ in range(8):
            selector(0)
        assert (selector.explain(0).source, selector.explain(0).noisy) == (source, False)


def test_a_problem_that_its_neighbour_answers_is_said_to_be_rare(program: Program) -> None:
    selector = program.selector(
        {"a": 2.0, "b": 1.0}, lambda x: x, neighbours=lambda x: [10], patience=5, store="off"
    )
    for _ in range(40):
        selector(10)
    assert [selector(3), selector(3)] == ["b", "b"]
    report = selector.explain(3)
    assert not report.settled
    assert report.why == (
        "rare so far: 'b', the decision of a similar problem, answers its calls, and a search "
        "begins after 3 more calls"
    )
    assert str(report).startswith(f"3: unsettled, {report.why}")
    for _ in range(40):
        selector(3)
    assert (selector.explain(3).settled, selector.explain(3).why) == (True, None)


def test_unfinished_passes_are_given_as_the_reason(program: Program) -> None:
    pairs = [(n, [program.function(n, 1.0), program.function(n, 1.0)]) for n in "ab"]
    selector = program.selector(pairs, store="off")
    for _ in range(7):
        selector(0, 1)
    why = selector.explain(1).why
    assert why is not None
    assert why.startswith("7 passes were begun and not finished, as in an evaluation")


def test_trials_around_unsettled_choices_are_given_as_the_reason(program: Program) -> None:
    inner = program.selector({"x": 1.0, "y": 2.0}, lambda n: n, name="inner", store="off")
    calls = iter(range(100))
    outer = program.selector(
        [("one", lambda n: inner(next(calls))), ("two", lambda n: inner(next(calls)))],
        name="outer",
        store="off",
    )
    outer(1), outer(1)
    assert outer.explain(1).why == (
        "none of 2 trials counted, as choices inside them are unsettled, or neighbours had the "
        "processors"
    )


def test_calls_before_a_window_are_no_trials_that_did_not_count(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, policy=Window(1, 9), store="off")
    for _ in range(5):
        selector(1)
    assert selector.explain(1).why is None


def test_two_batch_sizes_under_one_key_are_measured_anew(program: Program) -> None:
    """The calls take turns with the trials, so one alternative gets all the short calls: the slower
    one wins."""
    cost = {"a": {0: 8.0, 1: 2.0}, "b": {0: 4.0, 1: 1.0}}
    turns = {"n": 0}

    def alternative(name: str) -> tuple[str, object]:
        def called(x: int) -> str:
            program.clock.passes(cost[name][turns["n"] % 2])
            return name

        return name, called

    selector = BestOf(
        "mixed", [alternative("b"), alternative("a")], lambda x: 7, clock=program.clock, store="off"
    )
    wrong = False
    for turn in range(6000):
        turns["n"] = turn
        selector(turn)
        wrong = wrong or selector.explain(0).decision == "a"
    assert wrong  # the test has lost its object otherwise
    report = selector.explain(0)
    assert report.decision == "b"
    assert any(one.populations is not None for one in report.history)
    assert "two kinds of calls share this problem" in str(report)
    again = report_from_dict(json.loads(json.dumps(Report((selector.report(),)).to_dict())))
    assert again.selectors[0].problems[0].history == report.history


def test_a_near_tie_inside_does_not_keep_its_parent_calling_a_loser(program: Program) -> None:
    jitter = {"x": 0, "y": 0}

    def close(name: str) -> tuple[str, object]:
        def called(n: int) -> None:
            jitter[name] += 1
            program.clock.passes(1.0 + 0.04 * (jitter[name] * (3 if name == "x" else 5) % 7) / 7)

        return name, called

    options = {"clock": program.clock, "store": "off", "drift": False}
    inner = BestOf("inner", [close("x"), close("y")], lambda n: n, **options)

    def loser(n: int) -> None:
        program.clock.passes(50.0)
        inner(n)

    outer = BestOf(
        "outer",
        [("loser", loser), ("winner", lambda n: program.clock.passes(1.0))],
        lambda n: n,
        **options,
    )
    calls = 0
    while not outer.best_method_has_been_found(1):
        outer(1)
        calls += 1
        assert calls < 500
    lost = sum(
        isinstance(e, TrialEntry) and e.alternative == "loser" for e in outer.journal.entries()
    )
    assert outer.best_name[1] == "winner"
    assert not inner.best_method_has_been_found(1)  # it may take up to 120 calls
    assert lost <= 16


def test_a_pin_for_an_unknown_selector_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.pin("totl", "numpy")
    store.pin("total", "a")
    selector = busy(Clock(), {"a": [2.0], "b": [1.0]}, store, name="total")
    for _ in range(3):
        selector(0)
    unmet = [line for line in registry.unmet_orders() if "totl" in line]
    assert unmet == [
        "the pin totl=numpy had no effect: the program made no selector of this name, and the "
        "store has no times of one; remove the pin with `bestof store unpin totl`"
    ]


def test_a_store_that_the_program_closed_is_not_asked_for_pins(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "decisions.sqlite")
    store.pin("totl", "numpy")
    selector = busy(Clock(), {"a": [2.0], "b": [1.0]}, store, name="total")
    selector(0)
    store.close()
    assert not [line for line in registry.unmet_orders() if "totl" in line]


def test_a_pin_for_an_unknown_alternative_is_warned_of(program: Program) -> None:
    store = DictStore()
    store.pins["it"] = "numpi"
    selector = program.selector({"a": 2.0, "b": 1.0}, store=store)
    with pytest.warns(BestofWarning, match="'numpi' is pinned, but the alternatives are a, b"):
        selector(1)
