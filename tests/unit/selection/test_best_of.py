"""The arguments of a selector, and the calls of programs for the original BestOf."""

from __future__ import annotations

import functools
import operator
import re
from typing import Any

import numpy as np
import pytest
from fake_program import DictStore, Program

import bestof
from bestof import Alternative, BestOf, best_of
from bestof.errors import InvalidArgument, NoAlternative, ProblemError
from bestof.selection.policies import Fixed, Race, Rounds


def one(*args: Any) -> str:
    return "one"


def two(*args: Any) -> str:
    return "two"


PAIRS = [("one", one), ("two", two)]


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("", PAIRS, len), {}, "name: expected a text that is not empty; got ''"),
        (("  ", PAIRS, len), {}, "name: expected a text"),
        ((3, PAIRS, len), {}, "name: expected a text that is not empty; got 3"),
        (("it", [], len), {}, "alternatives: expected at least one"),
        (
            ("it", "one", len),
            {},
            "alternatives: expected a list of (name, function) pairs; got str",
        ),
        (("it", {"one": one}, len), {}, "got dict"),
        (("it", [one], len), {}, "alternatives[0]: expected a pair (name, function)"),
        (("it", [("one", one, 3)], len), {}, "alternatives[0]: expected a pair"),
        (("it", [("", one)], len), {}, "alternatives[0]: expected a name"),
        (
            ("it", [(1, one)], len),
            {},
            "alternatives[0]: expected a name, a text that is not empty; got 1",
        ),
        (("it", [("one", one), ("one", two)], len), {}, "'one' appears twice"),
        (("it", [("one", 3)], len), {}, "('one'): expected a callable, or a list of them; got int"),
        (("it", [("one", [])], len), {}, "at least one function"),
        (("it", [("one", [one, 3])], len), {}, "stage 1: expected a callable; got int"),
        (
            ("it", [("one", one), ("two", [two])], len),
            {},
            "all must be groups, or all plain; 'one'",
        ),
        (("it", [("one", [one, one]), ("two", [two])], len), {}, "'one' has 2, 'two' has 1"),
        (("it", [Alternative("one", one, "torch")], len), {}, "depends: expected a list of texts"),
        (("it", [Alternative("one", one, (3,))], len), {}, "depends: expected texts"),
        (
            ("it", [Alternative("one", one, supports=3)], len),
            {},
            "supports: expected a callable; got int",
        ),
        (("it", PAIRS, None), {}, "get_problem_size: expected a callable; got NoneType"),
        (("it", PAIRS, len, 0), {}, "rounds: expected an integer of at least 1; got 0"),
        (("it", PAIRS, len, 10, 0.5), {}, "pruning_speedup: expected a number of at least 1"),
        (("it", PAIRS, len, 10, 10.0, True), {}, "prune_after_round: expected an integer"),
        (
            ("it", PAIRS, len),
            {"policy": "fastest"},
            "policy: expected one of race, rounds, window, fixed, got 'fastest'",
        ),
        (("it", PAIRS, len), {"drift": 1}, "drift: expected True, False, or None; got 1"),
        (("it", PAIRS, len), {"drift": "off"}, "drift: expected True, False, or None; got 'off'"),
        (("it", PAIRS, len), {"policy": "race:tie=x"}, "tie: expected a number, got 'x'"),
        (("it", PAIRS, len), {"policy": 3}, "policy: expected a policy or its text; got 3"),
        (("it", PAIRS, len), {"policy": Race}, "policy: expected a policy or its text"),
        (("it", PAIRS, len), {"policy": Fixed("three")}, "expected one of one, two, got 'three'"),
        (
            ("it", PAIRS, len),
            {"patience": -1},
            "patience: expected an integer of at least 0; got -1",
        ),
        (("it", PAIRS, len), {"check": "close"}, "check: expected None, a relative tolerance"),
        (("it", PAIRS, len), {"check": True}, "got True"),
        (("it", PAIRS, len), {"check": -1.0}, "got -1.0"),
        (("it", PAIRS, len), {"check": float("nan")}, "got nan"),
        (("it", PAIRS, len), {"check": float("inf")}, "got inf"),
        (("it", [Alternative("one", one, mutates=True)], len), {"check": 0.1}, "needs restore="),
        (("it", PAIRS, len), {"restore": 3}, "restore: expected a callable; got int"),
        (("it", PAIRS, len), {"clock": 3}, "clock: expected a callable; got int"),
        (("it", PAIRS, len), {"on_event": 3}, "on_event: expected a callable; got int"),
        (("it", PAIRS, len), {"store": 3}, "store: expected a store, its URL, or 'off'; got int"),
        (
            ("it", PAIRS, len),
            {"max_problems": 1},
            "max_problems: expected an integer of at least 2; got 1",
        ),
        (("it", PAIRS, len), {"max_problems": True}, "got True"),
        (
            ("it", PAIRS, len),
            {"max_searches": 0},
            "max_searches: expected an integer of at least 1; got 0",
        ),
        (("it", PAIRS, len), {"max_problems": 2.0}, "got 2.0"),
        (("it", PAIRS, len), {"check_every": 5}, "check_every: needs check="),
        (
            ("it", PAIRS, len),
            {"check": 0.0, "check_every": 0},
            "check_every: expected an integer of at least 1; got 0",
        ),
        (("it", PAIRS, len), {"neighbours": 3}, "neighbours: expected a callable; got int"),
        (
            ("it", PAIRS, len),
            {"neighbours": len, "policy": "rounds"},
            "neighbours: a neighbour's decision is verified",
        ),
        (
            ("it", PAIRS, len),
            {"timer": 1.0},
            "timer: expected an object with start and paused; got float",
        ),
        (
            ("it", PAIRS, len),
            {"budget": 0},
            "budget: expected a share of the time above 0 and at most 1",
        ),
    ],
)
def test_refuses_unusable_arguments(arguments: Any, options: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)) as raised:
        BestOf(*arguments, **options)
    assert str(raised.value).startswith("BestOf")


class Callable_:
    def method(self, *args: Any) -> str:
        return "method"

    def __call__(self, *args: Any) -> str:
        return "object"


class Pair:
    def __init__(self, a: int, b: int) -> None:
        self.sum = a + b

    def __eq__(self, other: object) -> bool:
        return bool(self.sum == other)

    __hash__ = None  # type: ignore[assignment]  # results need not be hashable


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        operator.add,
        functools.partial(operator.add),
        np.add,
        int.__add__,
        Pair,
        BestOf("inner", [("add", operator.add)], lambda a, b: None),
    ],
    ids=["function", "builtin", "partial", "ufunc", "slot wrapper", "class", "BestOf"],
)
def test_anything_callable_is_an_alternative(function: Any, program: Program) -> None:
    selector = program.selector(
        [("first", lambda a, b: a + b), ("it", function)], lambda a, b: None
    )
    for _ in range(6):
        assert selector(2, 3) == 5
    assert selector.best_method_has_been_found(2, 3)


def test_methods_and_callable_objects_are_alternatives(program: Program) -> None:
    selector = program.selector([("method", Callable_().method), ("object", Callable_())])
    assert {selector(1) for _ in range(5)} == {"method", "object"}


def test_has_the_attributes_of_the_original(capsys: pytest.CaptureFixture[str]) -> None:
    def size(x: int) -> int:
        return x

    selector = BestOf("original", PAIRS, size, 7, 20.0, 3)
    assert selector.name == "original"
    assert selector.alternatives == PAIRS
    assert selector.get_problem_size is size
    assert (selector.total_alternatives, selector.total_rounds) == (2, 7)
    assert not selector.best_method_has_been_found(1)
    for _ in range(14):
        selector(1)
    assert selector.best_method_has_been_found(1)
    assert not selector.best_method_has_been_found(2)
    selector.print_as_table()
    assert capsys.readouterr().out.startswith("original\n")
    BestOf.print_report()
    assert "original\n" in capsys.readouterr().out
    assert repr(selector) == "<BestOf 'original' of one, two; 1 problem settled>"


def test_the_papers_numbers_make_the_papers_policy() -> None:
    assert BestOf("it", PAIRS, len)._knowledge.choice._own is None
    assert BestOf("it", PAIRS, len, 10, 10.0, 4)._knowledge.choice._own == Rounds()
    assert BestOf("it", PAIRS, len)._knowledge.choice._own is None
    assert BestOf("it", PAIRS, len, 3)._knowledge.choice._own == Rounds(3)
    assert BestOf("it", PAIRS, len, policy="race:tie=0.5")._knowledge.choice._own == Race(tie=0.5)


def test_always_the_first_and_back(program: Program) -> None:
    selector = program.selector({"slow": 2.0, "fast": 1.0})
    for _ in range(4):
        selector(1)
    assert selector(1) == "fast"
    BestOf.use_always_the_first_alternative()
    BestOf.use_always_the_first_alternative()
    assert [selector(1), selector(2)] == ["slow", "slow"]
    assert selector.trials == 4
    BestOf.use_the_best_alternative()
    assert selector(1) == "fast"


def test_arguments_go_through_as_they_are(program: Program) -> None:
    seen = []

    def keep(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    selector = program.selector([("keep", keep), ("too", keep)], lambda *args, **kwargs: None)
    for _ in range(5):
        selector(1, "x", key=[2])
    assert seen == [((1, "x"), {"key": [2]})] * 5


def test_the_decorator_makes_the_function_the_first_alternative() -> None:
    @best_of("total", [("builtin", sum)], len, policy="rounds:rounds=1")
    def loop(numbers: list[int]) -> int:
        """Adds up."""
        total = 0
        for number in numbers:
            total += number
        return total

    assert isinstance(loop, BestOf)
    assert (loop.__doc__, loop.__name__, loop.name) == ("Adds up.", "loop", "total")
    assert [loop([1, 2]), loop([1, 2]), loop([1, 2])] == [3, 3, 3]
    assert [alternative.name for alternative in loop.explain([1, 2]).alternatives] == [
        "loop",
        "builtin",
    ]


@pytest.mark.parametrize("problem", [[1], {}, {1}, ([1],)])
def test_a_problem_must_be_hashable(problem: Any, program: Program) -> None:
    selector = program.selector({"one": 1.0, "two": 1.0}, lambda *args: problem)
    for ask in (selector, selector.explain, selector.best_method_has_been_found):
        with pytest.raises(ProblemError, match="not hashable"):
            ask(1)


def test_a_problem_function_that_raises_is_the_callers_affair(program: Program) -> None:
    selector = program.selector({"one": 1.0, "two": 1.0}, lambda x: 1 // x)
    with pytest.raises(ZeroDivisionError):
        selector(0)
    assert program.taken() == []
    assert selector(1) == "one"


def test_an_inapplicable_alternative_is_not_called(program: Program) -> None:
    selector = program.selector(
        [
            Alternative(
                "even", program.function("even", 1.0), supports=lambda problem: problem[0] % 2 == 0
            ),
            ("any", program.function("any", 2.0)),
            ("too", program.function("too", 3.0)),
        ]
    )
    for _ in range(5):
        selector(1)
    assert program.taken() == ["any", "too", "any", "too", "any"]
    assert [row.status for row in selector.explain(1).alternatives] == [
        "not applicable",
        "chosen",
        "measured",
    ]


def test_the_only_one_that_applies_is_settled_at_once(program: Program) -> None:
    selector = program.selector(
        [("any", one), Alternative("none", two, supports=lambda problem: False)]
    )
    assert selector(1) == "one"
    assert selector.explain(1).source == "only"
    assert selector.trials == 0


def test_no_alternative_applies(program: Program) -> None:
    selector = program.selector([Alternative("none", one, supports=lambda problem: False)])
    with pytest.raises(NoAlternative, match="no alternative supports it; asked none"):
        selector(1)


def test_supports_that_raises_costs_the_alternative_not_the_call(program: Program) -> None:
    selector = program.selector(
        [Alternative("odd", one, supports=lambda problem: 1 // 0), ("two", two), ("three", two)]
    )
    with pytest.warns(bestof.errors.BestofWarning, match="supports raised ZeroDivisionError"):
        assert selector(1) == "two"
    assert selector(1) == "two"


def test_a_policy_for_the_process_that_does_not_fit_is_left_aside(program: Program) -> None:
    bestof.use_policy(Fixed("two"))
    fits = program.selector({"one": 1.0, "two": 2.0}, policy=None)
    other = program.selector({"first": 2.0, "second": 1.0}, policy=None)
    assert fits(1) == "two"
    assert fits.explain(1).source == "forced"
    for _ in range(20):
        other(1)
    assert other.explain(1).decision == "second"


def test_a_policy_for_the_process_may_be_a_text_and_nothing_else_but_a_policy(
    program: Program,
) -> None:
    bestof.use_policy("fixed:two")
    for wrong in (3, Fixed, "rounds:rounds=none"):
        with pytest.raises(
            bestof.errors.InvalidArgument, match=r"policy: expected|rounds: expected"
        ):
            bestof.use_policy(wrong)  # type: ignore[arg-type]
    assert program.selector(PAIRS, policy=None)(1) == "two"


def test_a_fixed_alternative_that_does_not_apply_is_replaced(program: Program) -> None:
    pairs = [("one", one), ("two", two), Alternative("three", one, supports=lambda problem: False)]
    selector = program.selector(pairs, policy=Fixed("three"), store=DictStore())
    assert selector(1) == "one"
    assert selector.explain(1).source == "forced"
