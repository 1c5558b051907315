"""After a decision: live checks, and the influence of settled neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import count
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import BestOf
from bestof.errors import BestofWarning
from bestof.selection.passes import PythonWinner
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.policy_choice import PolicyChoice


class Answers:
    """An alternative whose answer can be changed."""

    def __init__(self, program: Program, name: str, seconds: float) -> None:
        self.program, self.name, self.seconds, self.answer = program, name, seconds, 5

    def __call__(self, *args: Any) -> int:
        self.program.calls.append(self.name)
        self.program.clock.passes(self.seconds)
        return self.answer


def watched(program: Program, every: int, **options: Any) -> tuple[BestOf, Answers]:
    fast = Answers(program, "fast", 1.0)
    pairs = [
        ("slow", program.function("slow", 3.0, 5)),
        ("fast", fast),
        ("middle", program.function("middle", 2.0, 5)),
    ]
    selector = program.selector(pairs, check=0.0, check_every=every, **options)
    for _ in range(6):
        selector(1)
    assert selector.explain(1).decision == "fast"
    program.taken()
    return selector, fast


def test_every_so_many_calls_are_compared(program: Program) -> None:
    selector, _ = watched(program, 3)
    assert {selector(1) for _ in range(7)} == {5}
    assert program.taken() == [
        "fast",
        "fast",
        "slow",
        "fast",
        "fast",
        "fast",
        "slow",
        "fast",
        "fast",
    ]
    assert selector.trials == 6


def test_one_that_goes_wrong_later_is_found_out_answered_for_and_replaced(program: Program) -> None:
    store = DictStore()
    selector, fast = watched(program, 2, store=store)
    fast.answer = 6
    assert selector(1) == 6  # not compared yet
    with pytest.warns(
        BestofWarning, match="'fast' was disqualified: wrong result: result: off by 0.2"
    ):
        assert selector(1) == 5
    assert selector.explain(1).decision == "middle"
    assert store.kept["it", "(1,)"].decision == "middle"
    program.taken()
    assert [selector(1) for _ in range(4)] == [5] * 4
    assert program.taken() == ["middle", "slow", "middle", "middle", "slow", "middle"]


def test_the_first_alternative_needs_no_watch(program: Program) -> None:
    selector = program.selector(
        {"first": 1.0, "second": 2.0}, check=lambda expected, got: True, check_every=1
    )
    for _ in range(4):
        selector(1)
    assert (1,) in selector._settled


def test_watched_groups_are_compared_a_whole_pass(program: Program) -> None:
    second = Answers(program, "b1", 1.0)
    pairs = [
        ("a", [program.function("a0", 3.0, 5), program.function("a1", 3.0, 5)]),
        ("b", [program.function("b0", 1.0, 5), second]),
    ]
    selector = program.selector(pairs, check=0.0, check_every=2)
    for _ in range(4):
        selector(0, 1)
        selector(1, 1)
    program.taken()
    for _ in range(2):
        selector(0, 1)
        selector(1, 1)
    assert program.taken() == ["b0", "b1", "a0", "b0", "a1", "b1"]
    second.answer = 6
    assert [selector(stage, 1) for stage in (0, 1, 0)] == [5, 6, 5]
    with pytest.warns(BestofWarning, match="'b' was disqualified"):
        assert selector(1, 1) == 5
    assert selector.explain(1).decision == "a"


def test_a_watched_child_lets_its_parent_settle(program: Program) -> None:
    inner, _ = watched(program, 1000)
    outer = program.selector(
        [("nested", lambda *args: inner(*args)), ("flat", program.function("flat", 9.0))],
        name="outer",
    )
    for _ in range(4):
        outer(1)
    assert outer.explain(1).decision == "nested"


def test_a_neighbours_decision_is_tried_first_and_verified(program: Program) -> None:
    selector = program.selector(
        {"a": 3.0, "b": 2.0, "c": 1.0}, lambda n: n, neighbours=lambda n: [n - 1, n + 1]
    )
    for _ in range(60):
        selector(1)
    assert selector.explain(1).decision == "c"
    program.taken()
    for _ in range(24):
        selector(2)
    assert program.taken()[:3] == ["c", "a", "b"]
    assert selector.explain(2).decision == "c"
    selector(9)
    assert program.taken() == ["a"]  # no neighbour is settled


def test_a_near_tie_goes_to_the_neighbours_decision(program: Program) -> None:
    times = {1: {"a": 2.0, "b": 1.0}, 2: {"a": 1.0, "b": 1.0}, 3: {"a": 1.0, "b": 1.0}}

    def alternative(name: str) -> Any:
        return lambda n: program.clock.passes(times[n][name])

    pairs = [(name, alternative(name)) for name in "ab"]
    with_neighbours = program.selector(pairs, lambda n: n, neighbours=lambda n: [1])
    for n in (1, 2):
        for _ in range(60):
            with_neighbours(n)
    assert with_neighbours.explain(2).decision == "b"


def unhashable(n: int) -> Iterable[Any]:
    return [[n]]


def failing(n: int) -> Iterable[Any]:
    raise LookupError("lost")


@pytest.mark.parametrize("neighbours", [unhashable, failing, lambda n: 3])
def test_neighbours_that_cannot_be_had_are_warned_of_once(
    program: Program, neighbours: Any
) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, neighbours=neighbours)
    with pytest.warns(BestofWarning, match="neighbours raised .*; searching without") as caught:
        assert {selector(n) for n in (1, 2, 3) for _ in range(60)} == {"a", "b"}
    assert len(caught) == 1
    assert selector.explain(3).decision == "b"


@pytest.mark.parametrize(
    "neighbours", [lambda n: count(100), lambda n: [None, "x", n], lambda n: ()]
)
def test_unknown_neighbours_are_ignored(program: Program, neighbours: Any) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, neighbours=neighbours)
    for _ in range(60):
        selector(1)
    assert selector.explain(1).decision == "b"


def test_a_winner_is_given_up_with_the_lock(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its problem may have left those of late, to which the look-up moves it back."""
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, max_problems=4)
    for n in (1, 2, 3):
        while not selector.best_method_has_been_found(n):
            selector(n)
    knowledge, remember = selector._knowledge, Knowledge.remember
    assert 1 in knowledge.older

    def with_lock(self: Knowledge, problem: Hashable, winner: PythonWinner) -> None:
        assert self.lock._is_owned()
        remember(self, problem, winner)

    monkeypatch.setattr(Knowledge, "remember", with_lock)
    with pytest.warns(BestofWarning, match="'b' was disqualified: it failed"):
        assert selector.give_up(1, "it failed")
    assert selector(1) == "a"


def test_no_policy_is_made_in_a_trial() -> None:
    """To make and check a race takes microseconds."""
    choice = PolicyChoice(None, drift=True)
    assert choice.current() is choice.current()
