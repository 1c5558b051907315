"""Alternatives that could run and are not worth a trial: left out, told so, and taken by orders."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
from fake_program import Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, InvalidArgument, NoAlternative
from bestof.selection.policies import Fixed
from bestof.selection.store.memory import MemoryStore

COSTS = {"first": 2.0, "winograd4": 1.0}
WHY = "estimated at 3.1 times the cheapest"


def alternatives(program: Program) -> list[Any]:
    return [
        ("first", program.function("first", 2.0)),
        ("second", program.function("second", 1.0)),
        Alternative("slow", program.function("slow", 5.0), unpromising=lambda problem: WHY),
        Alternative(
            "unable",
            program.function("unable", 1.0),
            supports=lambda problem: False,
            unpromising=lambda problem: "never asked: it cannot run",
        ),
    ]


def rows(selector: BestOf) -> list[tuple[str, str | None]]:
    return [(one.status, one.reason) for one in selector.explain(1).alternatives]


def test_it_is_left_out_and_the_report_says_why(program: Program) -> None:
    selector = program.selector(alternatives(program))
    selector(1)
    assert rows(selector)[2:] == [("left out", WHY), ("not applicable", None)]
    for _ in range(8):
        selector(1)
    assert set(program.taken()) == {"first", "second"}
    assert rows(selector) == [
        ("measured", None),
        ("chosen", None),
        ("left out", WHY),
        ("not applicable", None),
    ]
    assert f"slow    left out: {WHY}" in str(selector.report())


@pytest.mark.parametrize(
    ("again", "called"),
    [
        (lambda one: one.race_again((1,)), {"first", "winograd4"}),
        (lambda one: one.give_up((1,), "wrong result: it turned"), {"first"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*'winograd4' was disqualified")
def test_it_stays_out_of_a_later_search(
    program: Program, again: Callable[[BestOf], bool], called: set[str]
) -> None:
    """Also if its name is a part of the chosen one's."""
    slow = Alternative("winograd", program.function("winograd", 5.0), unpromising=lambda _: WHY)
    others = [(name, program.function(name, cost)) for name, cost in COSTS.items()]
    selector = program.selector([*others, slow], drift=True)
    for _ in range(8):
        selector(1)
    assert selector.chosen((1,)) == "winograd4"
    program.taken()
    assert again(selector)
    for _ in range(8):
        selector(1)
    assert set(program.taken()) == called


def test_an_order_takes_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.pin("it", "slow")
    monkeypatch.setenv("BESTOF_FORCE", "forced=slow")
    for selector, source in (
        (program.selector(alternatives(program), store=store), "pinned"),
        (program.selector(alternatives(program), name="forced"), "forced"),
        (program.selector(alternatives(program), policy=Fixed("slow")), "forced"),
    ):
        assert [selector(1) for _ in range(3)] == ["slow"] * 3
        report = selector.explain(1)
        assert (report.decision, report.source, selector.trials) == ("slow", source, 0)


def test_an_order_does_not_take_what_cannot_run(program: Program) -> None:
    selector = program.selector(alternatives(program), policy=Fixed("unable"))
    assert selector(1) == "first"


def test_all_that_can_run_are_tried_if_none_is_promising(program: Program) -> None:
    doubtful = [
        Alternative(name, program.function(name, seconds), unpromising=lambda problem: WHY)
        for name, seconds in (("a", 2.0), ("b", 1.0))
    ]
    selector = program.selector(doubtful)
    for _ in range(5):
        selector(1)
    assert selector.explain(1).decision == "b"
    unable = Alternative("none", program.function("none", 1.0), supports=lambda problem: False)
    with pytest.raises(NoAlternative):
        program.selector([unable])(1)


def test_a_copy_keeps_an_ordered_one(program: Program) -> None:
    store = MemoryStore()
    store.pin("it", "slow")
    selector = program.selector(alternatives(program), store=store)
    selector(1)  # one call: the decision is not verified yet
    again = copy(selector)
    assert again(1) == "slow"


@pytest.mark.parametrize("answer", [None, False, ""])
def test_without_a_reason_it_is_worth_a_trial(program: Program, answer: Any) -> None:
    other = Alternative("b", program.function("b", 1.0), unpromising=lambda problem: answer)
    selector = program.selector([("a", program.function("a", 2.0)), other])
    for _ in range(9):
        selector(1)
    assert selector.explain(1).decision == "b"


def test_its_errors_are_told_apart_from_those_of_supports(program: Program) -> None:
    rows = [("a", program.function("a", 2.0))] + [
        Alternative(name, program.function(name, 1.0), unpromising=unpromising)
        for name, unpromising in (("true", lambda n: True), ("raises", lambda n: n.missing))
    ]
    selector = program.selector(rows)
    with pytest.warns(BestofWarning, match="unpromising raised"):
        selector(1)
    _, true, raises = (one.reason for one in selector.explain(1).alternatives)
    assert true is not None
    assert "must return a text that says why, or None" in true
    assert raises is not None
    assert raises.startswith("unpromising raised AttributeError")


def test_it_must_be_a_callable(program: Program) -> None:
    with pytest.raises(InvalidArgument, match="unpromising: expected a callable; got str"):
        program.selector([Alternative("a", len, unpromising="slow")])  # type: ignore[arg-type]
