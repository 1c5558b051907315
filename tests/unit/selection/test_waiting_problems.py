"""Problems that wait for a search: what answers them, what is kept of them, and when they get
one."""

from __future__ import annotations

import pytest
from fake_program import DictStore, Program

from bestof import BestOf
from bestof.errors import InvalidArgument
from bestof.selection import Alternative


def searched(selector: BestOf) -> set[object]:
    return set(selector._knowledge.searches())


def test_problems_that_never_repeat_are_not_searched(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_searches=4)
    for problem in range(1000):
        selector(problem)
    assert searched(selector) == {0, 1, 2, 3}
    assert program.taken() == ["a"] * 1000
    assert selector.trials == 4
    assert len(selector._knowledge.tunings) == 4
    waiting = selector._knowledge  # nothing else is kept of the others
    assert not waiting.decisions
    assert not waiting.settled


def test_a_search_that_ends_makes_room(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_searches=1)
    for _ in range(4):
        selector(0)
        selector(1)
    assert selector.best_method_has_been_found(0)
    for _ in range(4):
        selector(1)
    assert selector.best_method_has_been_found(1)


def test_settled_problems_are_answered_while_others_wait(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_searches=1)
    for _ in range(4):
        selector("settled")
    selector("searched")
    program.taken()
    assert [selector("settled"), selector("waits")] == ["b", "a"]


def test_a_problem_that_keeps_coming_back_takes_the_place_of_one_that_does_not(
    program: Program,
) -> None:
    store = DictStore()
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_searches=4, store=store)
    for problem in range(100):  # the first four are searched, and never come again
        selector(problem)
    for _ in range(64):
        selector("lasts")
    assert selector.best_method_has_been_found("lasts")
    assert store.kept["it", "0"].decision is None  # its evidence is saved
    assert len(searched(selector)) == 3


def test_problems_met_equally_often_do_not_push_each_other_out(program: Program) -> None:
    selector = program.selector(
        {"a": 2.0, "b": 1.0}, lambda n: n, max_searches=4, policy="rounds:rounds=20"
    )
    for _ in range(6):
        for problem in range(16):
            selector(problem)
            selector(problem)
    assert searched(selector) == {0, 1, 2, 3}


def test_waiting_problems_are_bounded(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_searches=4)
    for problem in range(1000):
        selector(problem)
    waiting = selector._long_way.__self__._new_problems._waiting  # type: ignore[attr-defined]
    assert len(waiting) == 16


def test_the_first_that_applies_answers(program: Program) -> None:
    alternatives = [
        Alternative("even", program.function("even", 1.0), supports=lambda n: n % 2 == 0),
        Alternative("b", program.function("b", 1.0)),
        Alternative("c", program.function("c", 1.0)),
    ]
    selector = program.selector(alternatives, lambda n: n, max_searches=1)
    selector(0)
    program.taken()
    assert [selector(1), selector(2), selector(3)] == ["b", "even", "b"]
    assert searched(selector) == {0}


def test_what_needs_no_search_does_not_wait(program: Program) -> None:
    store = DictStore()
    first = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, store=store)
    for _ in range(4):
        first("known")
    alternatives = [
        Alternative("a", first.alternatives[0][1], supports=lambda n: n != "only b"),
        Alternative("b", first.alternatives[1][1]),
    ]
    selector = program.selector(alternatives, lambda n: n, store=store, max_searches=1)
    selector("searched")
    assert [selector("known"), selector("only b"), selector("waits")] == ["b", "b", "a"]
    assert selector.explain("known").source == "stored"
    assert selector.explain("only b").source == "only"
    store.pins["it"] = "b"
    assert selector("pinned") == "b"


def test_a_pass_that_waits_is_finished_by_the_alternative_that_began_it(program: Program) -> None:
    stages = {name: [program.function(name, 1.0), program.function(name, 1.0)] for name in "ab"}
    selector = program.selector(
        list(stages.items()), lambda n: n, max_searches=1, policy="rounds:rounds=2"
    )
    for _ in range(3):
        answers = [(selector(0, n), selector(1, n)) for n in (0, 1, 2)]
        assert all(begun == finished for begun, finished in answers)
        assert answers[1:] == [("a", "a")] * 2
    selector(0, "waits")
    for _ in range(2):
        selector(0, 0)
        selector(1, 0)
    assert selector.best_method_has_been_found(0)
    assert selector(1, "waits") == "a"


def test_a_trial_around_a_waiting_problem_does_not_count(program: Program) -> None:
    inner = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, "inner", max_searches=4)
    for problem in range(4):
        inner(problem)
    outer = program.selector(
        [("uses inner", lambda n: inner(n)), ("other", program.function("other", 9.0))], len, "it"
    )
    for _ in range(8):
        outer("waits")
    assert searched(inner) == {0, 1, 2, 3}
    assert not outer.best_method_has_been_found("waits")


def test_an_alternative_that_calls_its_own_selector_does_not_recurse_for_ever(
    program: Program,
) -> None:
    def again(n: object) -> object:
        return selector(n)

    selector = program.selector(
        [("again", again), ("b", program.function("b", 1.0))], lambda n: n, max_searches=1
    )
    selector(0)
    assert selector(1) == "b"


def test_an_error_of_the_first_alternative_reaches_the_program(program: Program) -> None:
    def fails(n: object) -> str:
        if n == "waits":
            raise KeyError(n)
        return "a"

    selector = program.selector(
        [("a", fails), ("b", program.function("b", 1.0))], lambda n: n, max_searches=1
    )
    assert selector("searched") == "a"
    with pytest.raises(KeyError, match="waits"):
        selector("waits")
    assert selector("searched") == "b"


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_max_searches_is_a_count(program: Program, wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="max_searches: expected an integer of at least 1"):
        program.selector({"a": 1.0, "b": 1.0}, max_searches=wrong)
