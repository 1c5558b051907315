"""A program written for the original BestOf runs unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import numpy as np
import pytest
from fake_program import Program

from bestof import BestOf
from bestof.selection.policies import Race, Rounds, Window
from bestof.selection.state.journal import TrialEntry
from bestof.selection.trials.trial import detours


@pytest.fixture
def switched_off() -> Iterator[None]:
    BestOf.use_always_the_first_alternative()
    yield
    BestOf.use_the_best_alternative()
    assert not detours


def group(program: Program) -> BestOf:
    def alternative(name: str, seconds: float) -> tuple[str, list[object]]:
        return name, [
            program.function(f"{name}0", seconds),
            program.function(f"{name}1", seconds),
        ]

    return program.selector(
        [alternative("a", 2.0), alternative("b", 1.0)], policy="rounds:rounds=2", store="off"
    )


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_a_stage_may_be_an_integer_of_numpy(program: Program, kind: type) -> None:
    selector = group(program)
    assert selector(kind(0), 5) == "a0"
    assert selector(kind(1), 5) == "a1"


def test_counts_and_numbers_may_be_those_of_numpy(program: Program) -> None:
    selector = BestOf(
        "it",
        [("a", str), ("b", repr)],
        lambda x: x,
        np.int64(3),
        np.float32(2.0),
        np.int8(1),
        max_problems=np.int64(8),
        check=0.5,
        check_every=np.int64(4),
        store="off",
    )
    assert (selector.total_rounds, selector.prune_after_round) == (3, 1)
    assert Race(tie=np.float32(0.5), max_trials=np.int16(7)).max_trials == 7
    assert type(Rounds(np.int64(3)).rounds) is int
    assert Window(np.int64(1), np.int64(3)).stop_step == 3


@pytest.mark.parametrize("given", [{"rounds": 10}, {"pruning_speedup": 10.0}, {"rounds": 3}])
def test_rounds_that_are_given_mean_the_papers_rounds(program: Program, given: dict) -> None:
    def alternative(name: str) -> tuple[str, object]:
        return name, program.function(name, 1.0)

    selector = BestOf(
        "it",
        [alternative("a"), alternative("b")],
        lambda x: x,
        **given,
        clock=program.clock,
        store="off",
    )
    rounds = given.get("rounds", 10)
    for call in range(2 * rounds):
        assert not selector.best_method_has_been_found(1), call
        selector(1)
    assert selector.best_method_has_been_found(1)
    trials = sum(isinstance(entry, TrialEntry) for entry in selector.journal.entries())
    assert trials == selector.total_rounds * selector.total_alternatives


@pytest.mark.usefixtures("switched_off")
def test_switched_off_the_problem_function_is_not_called(program: Program) -> None:
    def size(*args: object) -> int:
        raise AssertionError("the problem function was called")

    plain = program.selector({"a": 2.0, "b": 1.0}, size, store="off")
    assert [plain(1) for _ in range(8)] == ["a"] * 8
    pairs = [(name, [lambda x, n=name: n + "0", lambda x, n=name: n + "1"]) for name in "ab"]
    grouped = BestOf("group", pairs, size, store="off")
    assert [grouped(stage, 1) for stage in (0, 1, np.int64(1))] == ["a0", "a1", "a1"]


def test_a_selector_that_was_settled_chooses_again_after_it_was_switched_on(
    program: Program,
) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, store="off")
    for _ in range(6):
        selector(1)
    assert selector(1) == "b"
    BestOf.use_always_the_first_alternative(True, update=True)
    assert selector(1) == "a"
    BestOf.use_always_the_first_alternative(False)
    assert selector(1) == "b"
    assert not detours


def test_the_attributes_of_the_original(program: Program) -> None:
    functions = {"a": program.function("a", 2.0), "b": program.function("b", 1.0)}
    selector = program.selector(list(functions.items()), lambda x: x, store="off")
    assert (selector.stages, selector.medians(), selector.speedups()) == (1, {}, {})
    for _ in range(4):
        selector(7)
    selector(8)
    assert dict(selector.best_name) == {7: "b"}
    assert selector.best_method[7] is functions["b"]
    assert dict(selector.best_idx) == {7: 1}
    assert (selector.best_name[8], selector.best_method[8], selector.best_idx[8]) == (
        "None",
        None,
        -1,
    )
    medians = selector.medians()
    assert medians[7] == [2.0, 1.0]
    assert medians[8][0] == 2.0
    assert isnan(medians[8][1])
    assert selector.speedups() == {7: 2.0}
    assert dict(selector.best_pipeline) == {}


def test_the_attributes_of_the_original_in_a_group(program: Program) -> None:
    selector = group(program)
    for _ in range(4):
        selector(0, 7), selector(1, 7)
    assert selector.stages == 2
    assert dict(selector.best_name) == {(7,): "b"}
    assert [f(7) for f in selector.best_pipeline[(7,)]] == ["b0", "b1"]
    assert dict(selector.best_method) == {}
    assert selector.medians() == {(7,): [4.0, 2.0]}
