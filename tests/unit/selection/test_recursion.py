"""Selectors that call themselves: errors from the depth, and problems that nest too deeply."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bestof import BestOf
from bestof.errors import BestofWarning, ProblemError
from bestof.selection.trials.trial import detours


def descending(leaf: Exception | None, calls: list[int], **options: Any) -> BestOf:
    """A selector both of whose alternatives call it for the next smaller number."""

    def down(n: int) -> int:
        calls.append(n)
        if n == 0 and leaf is not None:
            raise leaf
        return 0 if n == 0 else selector(n - 1) + 1

    def also_down(n: int) -> int:
        return down(n)

    selector = BestOf(
        "down", [("down", down), ("also", also_down)], lambda n: n, store="off", **options
    )
    return selector


@pytest.mark.parametrize("options", [{}, {"check": 0.0}, {"restore": lambda n: lambda: None}])
def test_the_error_of_a_leaf_is_the_error_of_the_call(options: dict[str, Any]) -> None:
    calls: list[int] = []
    error = LookupError("the leaf")
    selector = descending(error, calls, **options)
    with pytest.raises(LookupError, match="the leaf") as raised:
        selector(30)
    assert raised.value is error
    assert len(calls) <= 2 * 31  # two to the power of 32 before
    assert not detours
    assert (
        selector.report().problems[0].alternatives[0].reason is None
    )  # nothing is held against it


def test_an_error_that_is_raised_from_that_of_the_leaf_passes_too() -> None:
    calls: list[int] = []

    def down(n: int) -> int:
        calls.append(n)
        try:
            return round(1 / n) + selector(n - 1)
        except ArithmeticError as error:
            raise ArithmeticError(f"at {n}") from error

    selector = BestOf(
        "chain", [("down", down), ("again", lambda n: down(n))], lambda n: n, store="off"
    )
    with pytest.raises(ArithmeticError, match="at 20"):
        selector(20)
    assert len(calls) == 22


def test_two_selectors_that_call_each_other_end_with_the_error_of_the_leaf() -> None:
    calls: list[int] = []

    def down(n: int) -> int:
        calls.append(n)
        if n == 0:
            raise LookupError("the leaf")
        return (even, odd)[n % 2](n - 1)

    pairs = [("down", down), ("again", lambda n: down(n))]
    even, odd = (BestOf(name, pairs, lambda n: n, store="off") for name in ("even", "odd"))
    with pytest.raises(LookupError, match="the leaf"):
        even(24)
    assert len(calls) <= 2 * 25


def test_a_leaf_that_only_one_alternative_fails_at_is_answered_by_the_other() -> None:
    def shallow(n: int) -> int:
        if n == 0:
            raise LookupError("no leaf")
        return selector(n - 1) + 1

    selector = BestOf(
        "half",
        [("shallow", shallow), ("deep", lambda n: 0 if n == 0 else selector(n - 1) + 1)],
        lambda n: n,
        store="off",
    )
    with pytest.warns(BestofWarning, match="no leaf"):
        assert selector(12) == 12


def test_a_recursion_error_arrives_after_little_work() -> None:
    calls: list[int] = []
    selector = descending(None, calls)
    steps, profiler = 0, sys.getprofile()

    def count(*event: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)  # of all calls and returns
    try:
        with pytest.raises(RecursionError):
            selector(5000)
    finally:
        sys.setprofile(profiler)
    assert len(calls) < 5000  # each frame of the stack once, and once more at the end
    assert steps < 500 * sys.getrecursionlimit()  # 60 for each frame; once it did not end in 100 s
    assert not detours
    assert selector(3) == 3


@pytest.mark.parametrize("depth", [101, 900])
def test_a_problem_that_nests_too_deeply_is_refused(depth: int) -> None:
    problem: tuple[Any, ...] = ()
    for _ in range(depth):
        problem = (problem,)
    selector = BestOf("deep", [("a", lambda p: 1), ("b", lambda p: 1)], lambda p: p, store="off")
    with pytest.raises(ProblemError, match=r"BestOf\('deep'\).*100 levels deep; .*flat tuple"):
        selector(problem)
    with pytest.raises(ProblemError, match="100 levels deep"):
        selector.explain(problem)
    assert selector((1,)) == 1
