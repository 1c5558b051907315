"""Choices inside choices: found, decided from the leaves to the root, and reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_program import DictStore, Program
from nested_selectors import calls_until_settled, children, through

from bestof import BestOf


def test_a_parents_sample_counts_once_every_child_is_settled(program: Program) -> None:
    inner = program.selector({"x": 3.0, "y": 1.0}, name="inner", rounds=2)
    outer = program.selector(
        [("nested", through(inner)), ("flat", program.function("flat", 2.0))], name="outer"
    )
    for _ in range(4):  # asked again and again, for none of its samples counts
        outer(1)
    assert inner.explain(1).decision == "y"
    assert [row.trials for row in outer.explain(1).alternatives] == [0, 0]
    assert calls_until_settled(outer, 1) == 4
    assert outer.explain(1).decision == "nested"
    assert [row.seconds for row in outer.explain(1).alternatives] == [1.0, 2.0]
    assert children(outer, 1) == {"nested": (("inner", "(1,)"),), "flat": ()}


def test_three_levels_settle_from_the_leaves(program: Program) -> None:
    settled: list[str] = []
    selectors: dict[str, BestOf] = {}

    def watch(name: str) -> Callable[[Any], None]:
        return lambda entry: (
            settled.append(name) if type(entry).__name__ == "DecisionEntry" else None
        )

    selectors["leaf"] = program.selector({"x": 2.0, "y": 1.0}, name="leaf", on_event=watch("leaf"))
    for name, inner in (("middle", "leaf"), ("root", "middle")):
        pairs = [("in", through(selectors[inner])), ("out", program.function("out", 9.0))]
        selectors[name] = program.selector(pairs, name=name, on_event=watch(name))
    calls_until_settled(selectors["root"], 1)
    assert settled == ["leaf", "middle", "root"]
    assert children(selectors["root"], 1)["in"] == (("middle", "(1,)"),)
    assert children(selectors["middle"], 1)["in"] == (("leaf", "(1,)"),)


def test_a_child_settled_before_its_parent_began_is_a_child_all_the_same(program: Program) -> None:
    inner = program.selector({"x": 3.0, "y": 1.0}, name="inner")
    calls_until_settled(inner, 1)
    outer = program.selector(
        [("nested", through(inner)), ("flat", program.function("flat", 2.0))], name="outer"
    )
    assert calls_until_settled(outer, 1) == 4
    assert children(outer, 1)["nested"] == (("inner", "(1,)"),)


def test_the_tree_goes_through_a_selector_with_one_alternative(program: Program) -> None:
    inner = program.selector({"x": 3.0, "y": 1.0}, name="inner")
    wrapper = program.selector([("only", through(inner))], name="wrapper")
    outer = program.selector(
        [("nested", through(wrapper)), ("flat", program.function("flat", 9.0))], name="outer"
    )
    calls_until_settled(outer, 1)
    assert children(outer, 1)["nested"] == (("wrapper", "(1,)"),)
    assert children(wrapper, 1)["only"] == (("inner", "(1,)"),)


def test_a_group_within_a_plain_one(program: Program) -> None:
    pairs = [("a", [program.function("a0", 1.0), program.function("a1", 5.0)])]
    pairs.append(("b", [program.function("b0", 2.0), program.function("b1", 2.0)]))
    inner = program.selector(pairs, name="inner")

    def both(x: int) -> None:
        inner(0, x)
        inner(1, x)

    outer = program.selector(
        [("both", both), ("flat", program.function("flat", 9.0))], name="outer"
    )
    calls_until_settled(outer, 1)
    assert inner.explain(1).decision == "b"
    assert outer.explain(1).alternatives[0].seconds == 4.0


def test_a_plain_one_within_a_group(program: Program) -> None:
    inner = program.selector({"x": 3.0, "y": 1.0}, name="inner")
    first, second = program.function("b0", 2.0), program.function("b1", 2.0)
    outer = program.selector(
        [("a", [through(inner), through(inner)]), ("b", [first, second])], name="outer"
    )
    for _ in range(6):
        outer(0, 1)
        outer(1, 1)
    assert inner.explain(1).decision == "y"
    assert outer.explain(1).decision == "a"
    assert [row.seconds for row in outer.explain(1).alternatives] == [2.0, 4.0]
    assert children(outer, 1)["a"] == (("inner", "(1,)"),)


def test_divide_and_conquer(program: Program) -> None:
    def split(n: int) -> int:
        program.clock.passes(1.0)
        return n if n <= 1 else selector(n // 2) + selector(n - n // 2)

    def direct(n: int) -> int:
        program.clock.passes(float(n * n))
        return n

    selector = program.selector(
        [("direct", direct), ("split", split)], lambda n: n, policy="rounds:rounds=3"
    )
    calls_until_settled(selector, 16)
    assert {n: selector.explain(n).decision for n in (1, 2, 4, 8, 16)} == {
        1: "direct", 2: "split", 4: "split", 8: "split", 16: "split"
    }  # fmt: skip
    assert children(selector, 16)["split"] == (("it", "8"),)
    assert selector(16) == 16


def test_recursion_with_the_same_problem_ends_before_and_after_the_decision(
    program: Program,
) -> None:
    """Halves whose problem is the same bucket: the recursive one is faster, and must not recurse
    for ever."""

    def again(x: int) -> str:
        program.calls.append("again")
        return "again " + str(selector(x))

    selector = program.selector(
        [("again", again), ("direct", program.function("direct", 2.0))], lambda x: None
    )
    calls_until_settled(selector, 1)
    assert selector.explain(1).decision == "again"  # a tie, which goes to the first
    program.taken()
    assert selector(1) == "again direct"
    assert program.taken() == ["again", "direct"]


def test_recursion_through_another_selector_with_the_same_problem(program: Program) -> None:
    between = program.selector(
        [("x", lambda *args: selector(*args)), ("y", lambda *args: selector(*args))], name="between"
    )
    selector = program.selector(
        [("again", through(between)), ("direct", program.function("direct", 2.0))], name="it"
    )
    calls_until_settled(selector, 1)
    assert selector(1) == "direct"


def test_endless_recursion_raises_an_error_that_says_so(program: Program) -> None:
    selector = program.selector(
        [("a", lambda *args: selector(*args)), ("b", lambda *args: selector(*args))]
    )
    with pytest.raises(RuntimeError, match="very same problem"):
        selector(1)


def test_recursion_in_the_reference_of_a_check(program: Program) -> None:
    pairs = [("again", lambda *args: selector(*args)), ("one", lambda x: 1), ("too", lambda x: 1)]
    selector = program.selector(pairs, check=0.0)
    for _ in range(10):
        assert selector(1) == 1
    assert all(row.reason is None for row in selector.explain(1).alternatives)


def test_selectors_of_two_threads_are_never_parent_and_child(program: Program) -> None:
    other = program.selector({"x": 3.0, "y": 1.0}, name="other")

    def waits(x: int) -> None:
        thread = threading.Thread(target=other, args=(1,))  # its context is its own
        thread.start()
        thread.join()

    outer = program.selector(
        [("waits", waits), ("flat", program.function("flat", 99.0))], name="outer"
    )
    calls_until_settled(outer, 1)
    assert children(outer, 1) == {"waits": (), "flat": ()}


def test_generators_that_take_turns_do_not_nest(program: Program) -> None:
    one = program.selector({"x": 3.0, "y": 1.0}, name="one")
    two = program.selector({"x": 3.0, "y": 1.0}, name="two")

    def steps(selector: BestOf) -> Iterator[str]:
        while True:
            yield selector(1)

    for _ in zip(range(6), steps(one), steps(two), strict=False):
        pass
    assert (one.explain(1).decision, two.explain(1).decision) == ("y", "y")
    assert children(one, 1) == children(two, 1) == {"x": (), "y": ()}


def test_a_generator_resumed_inside_a_trial_is_part_of_it(program: Program) -> None:
    inner = program.selector({"x": 3.0, "y": 1.0}, name="inner")
    generator = (inner(1) for _ in range(1000))
    next(generator)
    outer = program.selector(
        [("next", lambda x: next(generator)), ("flat", program.function("flat", 9.0))], name="outer"
    )
    calls_until_settled(outer, 1)
    assert children(outer, 1)["next"] == (("inner", "(1,)"),)


def test_children_are_kept_in_the_store(program: Program) -> None:
    store = DictStore()
    for _ in range(2):
        inner = program.selector({"x": 3.0, "y": 1.0}, name="inner", store=store)
        pairs = [("nested", through(inner)), ("flat", program.function("flat", 9.0))]
        outer = program.selector(pairs, name="outer", store=store)
        calls_until_settled(outer, 1)
        assert children(outer, 1)["nested"] == (("inner", "(1,)"),)
    assert outer.explain(1).source == "stored"
