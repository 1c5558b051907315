"""Wrong or contradictory input gives an error that names it, or a documented fallback."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
from fake_program import Program
from test_best_of import PAIRS, test_refuses_unusable_arguments

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, InvalidArgument


def test_every_argument_of_the_constructor_is_refused_by_name_somewhere() -> None:
    (mark,) = (
        mark for mark in test_refuses_unusable_arguments.pytestmark if mark.name == "parametrize"
    )
    says = " ".join(case[2] for case in mark.args[1])
    arguments = set(inspect.signature(BestOf).parameters)
    # Three of the paper's are refused by the policy that is made of them, under their own names
    # too.
    assert {
        argument
        for argument in arguments
        if f"{argument}: " not in says and f"{argument}[" not in says
    } == set()


@pytest.mark.parametrize("setting", ["yes", "1", "OFF"])
def test_an_environment_that_says_nonsense_is_refused(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_DRIFT", setting)
    with pytest.raises(InvalidArgument, match=f"BESTOF_DRIFT: expected on or off; got {setting!r}"):
        BestOf("it", PAIRS, len)
    BestOf("it", PAIRS, len, drift=True)


def test_a_check_that_raises_disqualifies_and_says_so(program: Program) -> None:
    def check(expected: object, got: object) -> bool:
        raise LookupError("no idea")

    selector = program.selector({"a": 2.0, "b": 1.0}, check=check)
    with pytest.warns(
        BestofWarning, match="'b' was disqualified: wrong result: check raised LookupError: no idea"
    ):
        assert [selector(1) for _ in range(6)] == ["a"] * 6
    assert (selector.explain(1).decision, selector.explain(1).source) == ("a", "only")


def test_a_check_whose_verdict_has_no_truth_disqualifies(program: Program) -> None:
    class Both:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    selector = program.selector({"a": 2.0, "b": 1.0}, check=lambda expected, got: Both())
    with pytest.warns(BestofWarning, match="check raised ValueError: ambiguous"):
        assert [selector(1) for _ in range(4)] == ["a"] * 4


@pytest.mark.parametrize("estimate", ["cheap", [1.0], object()])
def test_an_estimate_that_is_no_number_disqualifies_and_says_so(
    program: Program, estimate: Any
) -> None:
    alternatives = [
        ("a", program.function("a", 2.0)),
        Alternative("b", program.function("b", 1.0), estimate=lambda _: estimate),
        Alternative("c", program.function("c", 3.0), estimate=lambda _: 1.0),
    ]
    selector = program.selector(alternatives)
    with pytest.warns(BestofWarning, match="'b' was disqualified: estimate raised .*Error"):
        assert selector(1) == "a"
    assert [selector(1) for _ in range(6)][-1] == "a"


def test_neighbours_that_lie_cost_a_short_race_and_no_wrong_decision(program: Program) -> None:
    times = {1: {"a": 1.0, "b": 2.5}, 2: {"a": 2.5, "b": 1.0}}

    def alternative(name: str) -> Any:
        def called(n: int) -> str:
            program.clock.passes(times[n][name])
            return name

        return called

    selector = program.selector(
        [(name, alternative(name)) for name in "ab"], lambda n: n, neighbours=lambda n: [3 - n]
    )
    for n in (1, 2):
        for _ in range(40):
            selector(n)
    assert [selector.explain(n).decision for n in (1, 2)] == ["a", "b"]


@pytest.mark.parametrize(
    "lie", [lambda n: [n], lambda n: [None, "?", object()], lambda n: [[]], lambda n: None]
)
def test_neighbours_that_name_nothing_of_use_are_done_without(lie: Any, program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: n, neighbours=lie)
    if lie(1) in ([[]], None):
        with pytest.warns(BestofWarning, match="neighbours raised TypeError"):
            selector(1)
    for _ in range(40):
        selector(1)
    assert selector.explain(1).decision == "b"


def test_a_problem_function_that_changes_its_mind_costs_memory_within_bounds(
    program: Program,
) -> None:
    numbers = itertools.count()
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: next(numbers), max_problems=8)
    assert {selector(1) for _ in range(500)} <= {"a", "b"}
    assert not selector.best_method_has_been_found(1)
    assert len(selector._knowledge.tunings) <= 8


def test_a_problem_function_that_takes_turns_settles_both_problems(program: Program) -> None:
    turns = itertools.cycle([1, 2])
    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: next(turns))
    for _ in range(20):
        selector(0)
    assert {one.decision for one in selector.report().problems} == {"b"}


def test_a_stage_whose_problem_is_another_is_answered_by_the_first_alternative(
    program: Program,
) -> None:
    """Documented: a stage that continues no pass has no alternative of its own."""
    numbers = itertools.count()
    pairs = [
        (name, [program.function(f"{name}0", 1.0), program.function(f"{name}1", 1.0)])
        for name in "ab"
    ]
    selector = program.selector(pairs, lambda n: next(numbers), max_problems=8)
    answers = {(selector(0, 1), selector(1, 1)) for _ in range(100)}
    assert answers == {("a0", "a1")}
    assert selector.trials == 100
    assert len(selector._knowledge.tunings) <= 8


def test_a_problem_whose_equality_raises_passes_its_error(program: Program) -> None:
    class Odd:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

    selector = program.selector({"a": 2.0, "b": 1.0}, lambda n: Odd())
    selector(1)
    with pytest.raises(ZeroDivisionError):
        selector(1)


@pytest.mark.parametrize("step", [-1.0, float("nan"), float("inf"), -float("inf")])
def test_a_clock_that_tells_nonsense_settles_nothing_and_answers(
    step: float, program: Program
) -> None:
    now = itertools.count()
    selector = BestOf("it", PAIRS, lambda n: n, 2, clock=lambda: step * next(now), store="off")
    assert {selector(1) for _ in range(50)} <= {"one", "two"}
    assert all(row.trials == 0 for row in selector.explain(1).alternatives)
    assert selector.report().trial_seconds == 0.0


def test_a_clock_that_stands_still_settles_on_the_first(program: Program) -> None:
    selector = BestOf("it", PAIRS, lambda n: n, clock=lambda: 5.0, store="off")
    for _ in range(100):
        selector(1)
    assert selector.explain(1).decision == "one"
    assert selector.saved_seconds == 0.0


def test_an_error_of_the_clock_passes_and_disqualifies_no_alternative(program: Program) -> None:
    def broken() -> float:
        raise OSError("no clock")

    selector = BestOf("it", PAIRS, lambda n: n, clock=broken, store="off")
    for _ in range(3):
        with pytest.raises(OSError, match="no clock"):
            selector(1)
    assert all(row.status == "not tried" for row in selector.explain(1).alternatives)


def test_a_problem_whose_comparison_raises_tells_so(program: Program) -> None:
    class Odd:
        def __hash__(self) -> int:
            return hash((1,))

        def __eq__(self, other: object) -> bool:
            raise TypeError("cannot compare")

    selector = program.selector({"a": 1.0}, lambda problem: problem)
    selector((1,))
    with pytest.raises(TypeError, match="cannot compare"):
        selector(Odd())
