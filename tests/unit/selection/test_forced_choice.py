"""Orders from outside: pins in the store, and BESTOF_FORCE."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_program import BrokenStore, Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, InvalidArgument
from bestof.selection.identity.host import host
from bestof.selection.policies import Fixed
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Record

TWO = {"a": 2.0, "b": 1.0}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("policy", ["race", "rounds", Fixed("b")])
def test_a_pin_settles_at_once_and_is_not_evidence(
    program: Program, store: MemoryStore, policy: Any
) -> None:
    store.pin("it", "a")
    selector = program.selector(TWO, store=store, policy=policy)
    assert [selector(1) for _ in range(5)] == ["a"] * 5
    assert program.taken() == ["a"] * 5
    report = selector.explain(1)
    assert (report.decision, report.source, selector.trials) == ("a", "pinned", 0)
    assert (1,) in selector._settled
    selector.flush()
    assert store.records() == []


@pytest.mark.parametrize(
    ("problem", "where", "obeyed"),
    [("(1,)", None, True), ("(2,)", None, False), (None, "elsewhere", False), (None, host(), True)],
)
def test_a_pin_holds_where_it_says(
    program: Program, store: MemoryStore, problem: str | None, where: str | None, obeyed: bool
) -> None:
    store.pin("it", "a", problem, where)
    selector = program.selector(TWO, store=store)
    selector(1)
    assert (selector.explain(1).source == "pinned") is obeyed
    assert selector.best_method_has_been_found(1) is obeyed


def test_a_pin_keeps_and_shows_the_measurements(program: Program, store: MemoryStore) -> None:
    first = program.selector(TWO, store=store)
    for _ in range(8):
        first(1)
    before = store.records()
    store.pin("it", "a")
    again = program.selector(TWO, store=store)
    assert again(1) == "a"
    assert [row.trials for row in again.explain(1).alternatives] == [2, 2]
    assert not again.explain(1).noisy  # b is faster, and no run verifies the order
    again.flush()
    assert store.records() == before
    store.unpin("it")
    assert program.selector(TWO, store=store)(1) == "b"


def test_a_pin_counts_also_where_nothing_else_remains(program: Program, store: MemoryStore) -> None:
    store.pin("it", "a")
    selector = program.selector({"a": 1.0}, store=store)
    selector(1)
    assert selector.explain(1).source == "pinned"


def test_a_problem_that_cannot_be_written_is_pinned_with_all(
    program: Program, store: MemoryStore
) -> None:
    store.pin("it", "a")
    thing = object()
    selector = program.selector(TWO, lambda value: value, store=store)
    selector(thing)
    assert selector.explain(thing).source == "pinned"


def test_a_pin_of_a_group_serves_every_stage(program: Program, store: MemoryStore) -> None:
    store.pin("it", "b")
    group = [
        (name, [program.function(f"{name}{stage}", 1.0) for stage in range(2)]) for name in "ab"
    ]
    selector = program.selector(group, store=store)
    for _ in range(3):
        assert (selector(0, 1), selector(1, 1)) == ("b0", "b1")
    assert selector.explain(1).source == "pinned"
    assert (1,) in selector._settled
    late = program.selector(group, store=store)
    assert late(1, 1) == "b1"
    assert late.explain(1).source == "pinned"


def refused_alternatives(program: Program) -> list[Alternative]:
    return [
        Alternative("a", program.function("a", 2.0)),
        Alternative("b", program.function("b", 1.0)),
        Alternative(
            "choosy", program.function("choosy", 0.5), supports=lambda problem: problem == (9,)
        ),
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", "the alternatives are a, b, choosy"),
        ("choosy", "it does not apply to this problem"),
        ("a", "it was disqualified: it was wrong"),
    ],
)
def test_a_pin_that_cannot_be_obeyed_is_warned_of_once(
    program: Program, store: MemoryStore, name: str, says: str
) -> None:
    store.pin("it", name)
    alternatives = refused_alternatives(program)
    store.save(
        Record(
            "it",
            "(1,)",
            host(),
            None,
            (Evidence("a", alternatives[0].version, (), "it was wrong"),),
            1.0,
        )
    )
    selector = program.selector(alternatives, store=store)
    with pytest.warns(BestofWarning, match=re.escape(says)) as told:
        selector(1)
    assert len(told) == 1
    assert "unpin" in str(told[0].message)
    for _ in range(8):
        selector(1)
    assert selector.explain(1).decision == "b"
    assert selector.explain(1).source in ("measured", "only")


def test_one_warning_for_all_problems_and_obeyed_where_it_can_be(
    program: Program, store: MemoryStore
) -> None:
    store.pin("it", "choosy")
    selector = program.selector(refused_alternatives(program), store=store)
    with pytest.warns(BestofWarning, match="does not apply") as told:
        assert [selector(n) for n in (1, 2, 9)] == ["a", "a", "choosy"]
    assert len(told) == 1
    assert selector.explain(9).source == "pinned"


def test_a_disqualification_of_another_version_does_not_count(
    program: Program, store: MemoryStore
) -> None:
    store.save(
        Record("it", "(1,)", host(), None, (Evidence("a", "an older one", (), "wrong"),), 1.0)
    )
    store.pin("it", "a")
    selector = program.selector(TWO, store=store)
    assert selector(1) == "a"
    assert selector.explain(1).source == "pinned"


def test_if_a_pinned_alternative_fails_another_one_answers(
    program: Program, store: MemoryStore
) -> None:
    store.pin("it", "bad")
    selector = program.selector(
        [("a", program.function("a", 1.0)), ("bad", program.failing("bad", ValueError("no")))],
        store=store,
    )
    with pytest.warns(BestofWarning, match="'bad' was disqualified: .*ValueError"):
        assert selector(1) == "a"
    assert selector(1) == "a"
    assert (selector.explain(1).decision, selector.explain(1).source) == ("a", "only")


def test_a_store_that_cannot_be_asked_costs_no_call(program: Program) -> None:
    class Mute(BrokenStore):
        def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
            raise OSError("the disk is gone")

    selector = program.selector(TWO, store=Mute())
    with pytest.warns(BestofWarning, match="the store failed"):
        assert selector(1) == "a"


def test_force_comes_before_pin_policy_and_evidence(
    program: Program, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pin("it", "b")
    monkeypatch.setenv("BESTOF_FORCE", "other=x, it = a ,")
    selector = program.selector(TWO, store=store, policy=Fixed("b"))
    monkeypatch.delenv("BESTOF_FORCE")
    assert [selector(n) for n in (1, 2, 1)] == ["a"] * 3
    assert (selector.explain(1).source, selector.trials) == ("forced", 0)
    selector.flush()
    assert store.records() == []
    assert program.selector(TWO, store=store)(1) == "b"


def test_names_may_have_commas_and_equals_signs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_FORCE", r"other=x,a\,b\=c = two\, three=four")
    selector = BestOf("a,b=c", [("one", abs), ("two, three=four", abs)], lambda n: n)
    selector(1)
    assert selector.explain(1).decision == "two, three=four"


def test_force_needs_no_store_and_serves_groups(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_FORCE", "it=b")
    group = [
        (name, [program.function(f"{name}{stage}", 1.0) for stage in range(2)]) for name in "ab"
    ]
    selector = program.selector(group)
    assert [selector(stage, 1) for stage in (0, 1, 0, 1)] == ["b0", "b1", "b0", "b1"]
    assert selector.explain(1).source == "forced"


def test_an_order_that_does_not_apply_is_warned_of_once(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_FORCE", "it=choosy")
    selector = program.selector(refused_alternatives(program))
    with pytest.warns(
        BestofWarning, match="is forced, but it does not apply .* change BESTOF_FORCE"
    ):
        selector(1)
    selector(2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("it=c", "BestOf('it'): BESTOF_FORCE: expected one of a, b, got 'c'"),
        (
            "other=x,it",
            "BESTOF_FORCE: expected selector=alternative[,selector=alternative], got 'it'",
        ),
        ("it=mine tile=1,2", r"got '2'; if the comma before it is part of a name, write \,"),
        ("=a", "got '=a'"),
        ("it=a,it=b", "BESTOF_FORCE: 'it' cannot take both 'a' and 'b'; order one of them"),
        ("it=", "got 'it='"),
    ],
)
def test_force_that_is_wrong_is_refused_when_the_selector_is_made(
    program: Program, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setenv("BESTOF_FORCE", text)
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        program.selector(TWO)
