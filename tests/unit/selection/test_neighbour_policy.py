"""What a neighbour's decision saves: trials of slow alternatives, and searches for rare
problems."""

from __future__ import annotations

import pytest
from fake_program import DictStore, Program

from bestof.errors import InvalidArgument
from bestof.selection import BestOf
from bestof.selection.policies import Neighbour, Race
from bestof.selection.policies.policy import OpenSearch

NAMES = ["a", "b", "c"]


def asked(search: OpenSearch, times: tuple[float, ...]) -> list[int]:
    calls = []
    while (position := search.ask()) is not None:
        calls.append(position)
        search.tell(position, times[position])
    return calls


def test_alternatives_left_out_are_never_asked_for() -> None:
    search = Neighbour("b", without=frozenset("c")).start(NAMES)
    calls = asked(search, (2.0, 1.0, 0.5))
    assert set(calls) == {0, 1}
    assert search.winner == 1


def test_alternatives_left_out_come_back_if_all_others_drop() -> None:
    search = Neighbour("b", without=frozenset("c")).start(NAMES)
    search.drop(1)
    assert search.ask() is None or search.ask() == 0
    search.drop(0)
    assert search.winner == 2
    search.drop(2)
    assert (search.ask(), search.winner, search.best) == (None, None, None)


def test_a_decision_is_never_left_out_of_its_own_search() -> None:
    search = Neighbour("b", without=frozenset("ab")).start(NAMES)
    assert set(asked(search, (2.0, 1.0, 3.0))) == {1, 2}


def test_patience_answers_by_the_decision_and_its_times_are_no_evidence() -> None:
    search = Neighbour("c", patience=5).start(NAMES)
    for _ in range(5):
        assert search.ask() == 2
        assert search.best == 2
        assert search.winner is None
        search.tell(2, 0.001)
    asked(search, (2.0, 1.0, 3.0))
    assert search.winner == 1


def test_losing_the_decision_ends_patience() -> None:
    search = Neighbour("c", patience=5).start(NAMES)
    assert search.ask() == 2
    search.drop(2)
    assert search.ask() == 0


def test_stored_evidence_decides_at_once() -> None:
    told = Neighbour("c").start(NAMES)
    calls = asked(told, (3.0, 1.0, 2.0))
    search = Neighbour("c", patience=5).start(NAMES)
    for position in calls:
        search.tell(position, (3.0, 1.0, 2.0)[position])
    assert search.ask() is None
    assert search.winner == 1


def test_patience_is_a_count() -> None:
    with pytest.raises(InvalidArgument, match="patience"):
        Neighbour("a", patience=-1)
    with pytest.raises(InvalidArgument, match="patience"):
        BestOf("it", [("a", len)], len, patience=-1)


def test_a_selector_spares_its_neighbours_losers_and_waits() -> None:
    seconds = {"a": 2.0, "b": 1.0, "c": 9.0}
    now, calls = [0.0], []

    def run(name: str, n: int) -> None:
        now[0] += seconds[name]
        calls.append((name, n))

    selector = BestOf(
        "patient",
        [(name, lambda n, name=name: run(name, n)) for name in seconds],
        lambda n: n,
        policy=Race(),
        clock=lambda: now[0],
        neighbours=lambda n: [n - 1],
        patience=7,
        store="off",
    )
    while not selector.best_method_has_been_found(1):
        selector(1)
    for _ in range(7):
        selector(2)
    assert {name for name, n in calls if n == 2} == {"b"}
    assert not selector.best_method_has_been_found(2)
    while not selector.best_method_has_been_found(2):
        selector(2)
    assert {name for name, n in calls if n == 2} == {"a", "b"}
    assert selector.explain(2).decision == "b"


def patient(program: Program, store: DictStore | str) -> BestOf:
    """Return a selector whose problem 1 is settled: `b` answers seven calls of problem 2."""
    selector = program.selector(
        {"a": 2.0, "b": 1.0}, lambda n: n, neighbours=lambda n: [1], patience=7, store=store
    )
    while not selector.best_method_has_been_found(1):
        selector(1)
    program.taken()
    return selector


def test_times_during_patience_are_no_evidence_for_later_runs(program: Program) -> None:
    store = DictStore()
    selector = patient(program, store)
    for _ in range(3):
        selector(2)
    selector.flush()
    assert ("it", "2") not in store.kept
    assert selector.explain(2).alternatives[1].trials == 0


def test_times_during_patience_are_no_evidence_of_the_decision(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector, clock = patient(program, "off"), program.clock

    def sooner(seconds: float) -> None:
        clock.now += seconds / 10

    with monkeypatch.context() as patch:
        patch.setattr(clock, "passes", sooner)
        for _ in range(7):
            selector(2)
    while not selector.best_method_has_been_found(2):
        selector(2)
    assert {row.name: row.seconds for row in selector.explain(2).alternatives} == {
        "a": 2.0,
        "b": 1.0,
    }


def test_the_decision_answers_while_trials_wait_for_their_budget(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BESTOF_BUDGET")
    selector = patient(program, "off")
    selector(2)
    selector._knowledge.budget.book(1e9)
    assert [selector(2) for _ in range(20)] == ["b"] * 20


def test_patience_that_is_over_is_no_reason_to_be_unsettled(program: Program) -> None:
    selector = patient(program, "off")
    for _ in range(7):
        selector(2)
    assert selector.explain(2).why is None
