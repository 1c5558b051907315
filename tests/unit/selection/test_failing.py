"""Alternatives that raise or return wrong results: what is disqualified, and what answers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, NoAlternative
from bestof.selection.trials.trial import detours


def reasons(selector: BestOf, *args: Any) -> dict[str, str | None]:
    """The reasons of disqualifications, without their circumstances."""
    rows = selector.explain(*args).alternatives
    return {row.name: row.reason and row.reason.partition(", on 20")[0] for row in rows}


def test_one_that_raises_is_called_once_and_replaced(program: Program) -> None:
    selector = program.selector(
        [("a", program.failing("a", TypeError("no"))), ("b", str), ("c", str)]
    )
    with pytest.warns(BestofWarning, match="'a' was disqualified: raised TypeError: no") as caught:
        assert selector(1) == "1"
    assert len(caught) == 1
    for _ in range(6):
        assert selector(1) == "1"
    assert program.taken() == ["a"]
    assert reasons(selector, 1) == {"a": "raised TypeError: no", "b": None, "c": None}
    assert selector.explain(1).decision == "b"


def test_a_settled_winner_that_raises_is_called_once_and_heard(program: Program) -> None:
    failing: list[bool] = []

    def fast(x: int) -> str:
        program.calls.append("fast")
        if failing:
            raise TypeError("no")
        return "fast"

    selector = program.selector([("slow", program.function("slow", 2.0)), ("fast", fast)])
    for _ in range(4):
        selector(1)
    failing.append(True)
    program.taken()
    with pytest.raises(TypeError, match="no"):
        selector(1)
    assert program.taken() == ["fast"]
    assert selector.explain(1).decision == "fast"


def test_if_all_alternatives_fail_alike_the_call_is_at_fault(program: Program) -> None:
    first = ValueError("first")
    selector = program.selector(
        [("a", program.failing("a", first)), ("b", program.failing("b", ValueError("second")))]
    )
    for _ in range(3):
        with pytest.raises(ValueError, match="first") as raised:
            selector(1)
        assert raised.value is first
        assert raised.value.__cause__ is None
        assert program.taken() == ["a", "b"]
    assert reasons(selector, 1) == {"a": None, "b": None}
    assert (selector.trials, selector.journal.entries()) == (0, ())


def test_bad_arguments_to_good_alternatives_change_nothing(program: Program) -> None:
    selector = program.selector([("a", len), ("b", len)], lambda x: None)
    with pytest.raises(TypeError, match="has no len"):
        selector(3)
    assert [selector("abc") for _ in range(5)] == [3] * 5
    assert reasons(selector, "abc") == {"a": None, "b": None}


def test_all_fail_in_their_own_ways(program: Program) -> None:
    errors = {"a": ValueError("bad"), "b": TypeError("worse")}
    selector = program.selector(
        [(name, program.failing(name, error)) for name, error in errors.items()]
    )
    with pytest.raises(
        NoAlternative, match=r"every alternative failed: a: ValueError: bad; b: TypeError: worse"
    ) as raised:
        selector(1)
    assert raised.value.reasons == errors
    assert reasons(selector, 1) == {"a": None, "b": None}


def test_a_single_alternative_raises_its_own_error(program: Program) -> None:
    selector = program.selector([("a", program.failing("a", KeyError("k")))])
    with pytest.raises(KeyError):
        selector(1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_interrupt_passes_with_the_state_intact(error: BaseException, program: Program) -> None:
    interrupting: list[bool] = [True]

    def first(x: int) -> str:
        program.clock.passes(1.0)
        if interrupting:
            raise error
        return "first"

    selector = program.selector([("first", first), ("second", program.function("second", 2.0))])
    with pytest.raises(type(error)):
        selector(1)
    assert detours == []
    assert selector.trials == 0
    interrupting.clear()
    for _ in range(4):
        selector(1)
    assert selector.explain(1).decision == "first"


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), StopIteration(), AssertionError()]
)
def test_a_failure_disqualifies(error: Exception, program: Program) -> None:
    selector = program.selector([("a", program.failing("a", error)), ("b", str)])
    with pytest.warns(BestofWarning, match=f"raised {type(error).__name__}"):
        assert selector(1) == "1"


def test_disqualified_for_one_problem_only(program: Program) -> None:
    selector = program.selector([("a", lambda x: 1 // x), ("b", lambda x: 0)])
    with pytest.warns(BestofWarning, match="problem \\(0,\\)"):
        assert selector(0) == 0
    assert selector(1) == 1


def fill(
    answer: int, program: Program, seconds: float, fails: bool = False
) -> Callable[[list[int]], list[int]]:
    """Changes its argument and returns it."""

    def filled(values: list[int]) -> list[int]:
        program.clock.passes(seconds)
        values.append(answer)
        if fails:
            raise ValueError("half done")
        return values

    return filled


def put_back(values: list[int]) -> Callable[[], None]:
    before = list(values)

    def undo() -> None:
        values[:] = before

    return undo


def test_one_that_changes_its_arguments_and_fails_raises(program: Program) -> None:
    pairs = [
        Alternative("a", fill(7, program, 1.0, fails=True), mutates=True),
        ("b", fill(8, program, 1.0)),
    ]
    selector = program.selector(pairs, lambda values: None)
    values: list[int] = []
    with pytest.raises(ValueError, match="half done"):
        selector(values)
    assert values == [7]
    assert reasons(selector, values) == {"a": None, "b": None}


def test_unless_the_arguments_can_be_put_back(program: Program) -> None:
    pairs = [
        Alternative("a", fill(7, program, 1.0, fails=True), mutates=True),
        ("b", fill(8, program, 1.0)),
    ]
    selector = program.selector(pairs, lambda values: None, restore=put_back)
    values: list[int] = []
    with pytest.warns(BestofWarning, match="half done"):
        assert selector(values) is values
    assert values == [8]


def test_a_check_with_changed_arguments_compares_and_leaves_the_right_ones(
    program: Program,
) -> None:
    pairs = [
        (name, fill(answer, program, 1.0)) for name, answer in (("a", 7), ("wrong", 8), ("c", 7))
    ]
    pairs = [Alternative(name, function, mutates=True) for name, function in pairs]
    selector = program.selector(pairs, lambda values: None, restore=put_back, check=0.0)
    results = []
    for call in range(6):
        values = [call]
        if call == 1:
            with pytest.warns(
                BestofWarning, match=r"'wrong' was disqualified: wrong result: result\[1\]: off by"
            ):
                results.append(selector(values))
        else:
            results.append(selector(values))
        assert results[-1] is values
    assert results == [[call, 7] for call in range(6)]


def test_a_reference_that_fails_under_a_check_blames_only_itself(program: Program) -> None:
    failing: list[bool] = []

    def first(values: list[int]) -> list[int]:
        values.append(1)
        if failing:
            raise ValueError("later")
        return values

    pairs = [("a", first), ("b", fill(1, program, 1.0)), ("c", fill(1, program, 1.0))]
    selector = program.selector(pairs, lambda values: None, restore=put_back, check=0.0)
    assert selector([]) == [1]
    failing.append(True)
    with pytest.warns(BestofWarning, match="'a' was disqualified: raised ValueError: later"):
        assert selector([]) == [1]
    assert selector([]) == [1]
    assert reasons(selector, []) == {"a": "raised ValueError: later", "b": None, "c": None}


def test_restore_must_give_a_function(program: Program) -> None:
    selector = program.selector([("a", str), ("b", str)], restore=lambda x: None)
    with pytest.raises(ValueError, match="restore: expected to get a function"):
        selector(1)


def test_wrong_results_never_reach_the_caller(program: Program) -> None:
    functions = {"right": (1.0, 3.0), "wrong": (9.0, 1.0), "close": (1.001, 2.0)}
    pairs = [
        (name, program.function(name, seconds, answer))
        for name, (answer, seconds) in functions.items()
    ]
    selector = program.selector(pairs, check=0.01)
    assert selector(1) == 1.0
    with pytest.warns(
        BestofWarning, match="off by 8 of the largest value, where 0.01 is allowed"
    ) as caught:
        assert selector(1) == 1.0
    assert len(caught) == 1
    for _ in range(5):
        assert selector(1) in (1.0, 1.001)
    assert selector.explain(1).decision == "close"
    assert program.taken().count("wrong") == 1


def test_each_alternative_is_compared_once_a_problem(program: Program) -> None:
    selector = program.selector(
        [(name, program.function(name, 1.0, 5)) for name in "abc"], check=0.0, rounds=3
    )
    for _ in range(9):
        selector(1)
    assert program.taken() == ["a", "a", "b", "a", "c", "a", "b", "c", "a", "b", "c"]


def test_a_check_that_raises_disqualifies(program: Program) -> None:
    def check(expected: Any, got: Any) -> bool:
        raise ArithmeticError("cannot say")

    selector = program.selector({"a": 1.0, "b": 1.0}, check=check)
    assert selector(1) == "a"
    with pytest.warns(BestofWarning, match="check raised ArithmeticError: cannot say"):
        assert selector(1) == "a"


def test_a_warning_turned_into_an_error_leaves_the_state_intact(program: Program) -> None:
    selector = program.selector(
        [("a", program.failing("a", ValueError("no"))), ("b", str), ("c", str)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BestofWarning):
            selector(1)
    assert [selector(1) for _ in range(5)] == ["1"] * 5


def test_a_stored_winner_that_no_longer_runs_is_replaced(program: Program) -> None:
    store, broken = DictStore(), []

    def b(x: int) -> str:
        program.clock.passes(1.0)
        if broken:
            raise OSError("gone")
        return "b"

    pairs = [
        ("a", program.function("a", 3.0)),
        Alternative("b", b, ["1"]),
        ("c", program.function("c", 2.0)),
    ]
    first = program.selector(pairs, store=store)
    for _ in range(6):
        first(1)
    assert first.explain(1).decision == "b"
    broken.append(True)
    second = program.selector(pairs, store=store)
    with pytest.warns(BestofWarning, match="'b' was disqualified: raised OSError: gone") as caught:
        assert second(1) == "a"
    assert len(caught) == 1
    assert second(1) == "c"  # the evidence of the others was there
    assert store.kept["it", "(1,)"].decision == "c"
    third = program.selector(pairs, store=store)
    assert [third(1) for _ in range(3)] == ["c"] * 3  # `b` was tried again, and failed again
    assert reasons(third, 1)["b"] == "raised OSError: gone"
    assert (third.explain(1).decision, third.explain(1).source) == ("c", "stored")
    broken.clear()
    fourth = program.selector(pairs, store=store)
    assert [fourth(1) for _ in range(6)] == ["c", *["b"] * 5]
    assert (fourth.explain(1).decision, store.kept["it", "(1,)"].decision) == ("b", "b")


def test_a_stored_winner_is_compared_at_its_first_call(program: Program) -> None:
    store, wrong = DictStore(), []

    def b(x: int) -> int:
        program.clock.passes(1.0)
        return 6 if wrong else 5

    pairs = [("a", program.function("a", 3.0, 5)), ("b", b)]
    first = program.selector(pairs, store=store, check=0.0)
    for _ in range(4):
        first(1)
    wrong.append(True)
    second = program.selector(pairs, store=store, check=0.0)
    with pytest.warns(BestofWarning, match="'b' was disqualified: wrong result"):
        assert second(1) == 5
    assert second(1) == 5
    assert second.explain(1).decision == "a"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions carry notes from Python 3.11 on")
def test_where_all_fail_alike_the_reasons_of_the_others_are_noted() -> None:
    def failing(words: str) -> Any:
        def function(x: int) -> None:
            raise ValueError(words)

        return function

    selector = BestOf(
        "all", [("a", failing("one")), ("b", failing("two"))], lambda x: x, store="off"
    )
    with pytest.raises(ValueError, match="one") as raised:
        selector(1)
    assert str(raised.value) == "one"
    assert "b: ValueError: two" in raised.value.__notes__[0]
