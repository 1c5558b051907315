"""Exact sequences of calls of plain selectors under the paper's policy."""

from __future__ import annotations

import pytest
from fake_program import Program

from bestof import BestOf


def test_alternatives_take_turns_until_exactly_rounds_times_n_calls(program: Program) -> None:
    selector = program.selector({"a": 3.0, "b": 1.0, "c": 2.0}, rounds=3)
    for call in range(9):
        assert not selector.best_method_has_been_found(1), call
        selector(1)
    assert program.taken() == ["a", "b", "c"] * 3
    assert selector.best_method_has_been_found(1)
    assert [selector(1) for _ in range(5)] == ["b"] * 5
    assert selector.trials == 9
    assert selector.report().trial_seconds == 18.0
    assert selector.report().loss_seconds == 9.0


def test_hopeless_ones_are_pruned(program: Program) -> None:
    selector = program.selector(
        {"a": 1.0, "b": 50.0, "c": 2.0}, None, "it", rounds=4, prune_after_round=2
    )
    for _ in range(12):
        selector(1)
    assert program.taken() == ["a", "b", "c", "a", "b", "c", "a", "c", "a", "c", "a", "a"]


def test_each_problem_has_its_own_decision(program: Program) -> None:
    def slow_if_large(size: int) -> str:
        program.clock.passes(float(size))
        return "linear"

    selector = program.selector(
        [("linear", slow_if_large), ("constant", program.function("constant", 5.0))]
    )
    for size in (1, 9, 1, 9, 9, 1, 9, 1):
        selector(size)
    assert [selector(1), selector(9)] == ["linear", "constant"]
    assert [problem.problem for problem in selector.report().problems] == ["(9,)", "(1,)"]


@pytest.mark.parametrize("policy", ["rounds:rounds=3", "race"])
def test_ties_go_to_the_first(program: Program, policy: str) -> None:
    selector = program.selector({"z": 1.0, "a": 1.0, "m": 1.0}, policy=policy)
    for _ in range(60):
        selector(1)
    assert selector.explain(1).decision == "z"


def test_a_problem_function_that_changes_its_mind_is_asked_once_a_call(program: Program) -> None:
    answers = iter(range(100))
    selector = program.selector({"a": 1.0, "b": 2.0}, lambda *args: next(answers))
    for _ in range(10):
        assert selector(0) == "a"
    assert next(answers) == 10
    assert len(selector.report().problems) == 10


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1.0])
def test_a_clock_that_is_no_clock_decides_nothing_and_breaks_nothing(
    program: Program, broken: float
) -> None:
    steps = iter([0.0, broken] * 5)
    pairs = [("a", program.function("a", 1.0)), ("b", program.function("b", 2.0))]
    selector = BestOf(
        "it",
        pairs,
        lambda x: x,
        policy="rounds:rounds=2",
        clock=lambda: next(steps, program.clock.now),
        store="off",
    )
    assert [selector(1) for _ in range(5)] == ["a"] * 5
    assert selector.report().trial_seconds == 0.0
    for _ in range(4):
        selector(1)
    assert selector.explain(1).decision == "a"
    assert selector.report().trial_seconds == 6.0
