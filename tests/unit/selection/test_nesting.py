"""Choices inside choices: discovered, decided from the leaves to the root, reported."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_program import DictStore, Program

from bestof import BestOf
from bestof.selection.trial import detours


def through(*inner: BestOf) -> Callable[[Any], Any]:
    """An alternative that does nothing but call these."""

    def called(x: Any) -> Any:
        return [selector(x) for selector in inner][-1]

    return called


def children(selector: BestOf, *args: Any) -> dict[str, tuple[tuple[str, str], ...]]:
    return {row.name: row.children for row in selector.explain(*args).alternatives}


def calls_until_settled(selector: BestOf, *args: Any, limit: int = 200) -> int:
    for calls in range(limit):
        if selector.best_method_has_been_found(*args):
            return calls
        selector(*args)
    raise AssertionError(f"not settled after {limit} calls")


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


def test_recursion_that_nobody_ends_says_so(program: Program) -> None:
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


def coroutine(program: Program, name: str, seconds: float, inner: BestOf | None = None) -> Any:
    async def called(x: int) -> str:
        await asyncio.sleep(0)
        program.clock.passes(seconds)
        if inner is not None:
            await inner(x)
        await asyncio.sleep(0)
        return name

    return called


def test_coroutines_are_timed_to_their_end_and_nest(program: Program) -> None:
    pairs = [("x", coroutine(program, "x", 3.0)), ("y", coroutine(program, "y", 1.0))]
    inner = program.selector(pairs, name="inner")
    pairs = [
        ("nested", coroutine(program, "nested", 1.0, inner)),
        ("flat", coroutine(program, "flat", 9.0)),
    ]
    outer = program.selector(pairs, name="outer")

    async def main() -> None:
        for _ in range(12):
            await outer(1)

    asyncio.run(main())
    assert inner.explain(1).decision == "y"
    assert outer.explain(1).decision == "nested"
    assert [row.seconds for row in outer.explain(1).alternatives] == [2.0, 9.0]
    assert children(outer, 1)["nested"] == (("inner", "(1,)"),)


def test_tasks_that_take_turns_do_not_nest(program: Program) -> None:
    names = ("one", "two", "three")
    selectors = [
        program.selector(
            [("x", coroutine(program, "x", 1.0)), ("y", coroutine(program, "y", 1.0))], name=name
        )
        for name in names
    ]

    async def main() -> None:
        for _ in range(6):
            await asyncio.gather(*(selector(1) for selector in selectors))

    asyncio.run(main())
    for selector in selectors:
        assert selector.best_method_has_been_found(1)
        assert children(selector, 1) == {"x": (), "y": ()}


def test_a_task_that_outlives_its_trial_is_no_child_of_it(program: Program) -> None:
    found: list[str] = []
    tasks: list[Any] = []
    release = asyncio.Event()

    async def starts(x: int) -> str:
        if not tasks:
            tasks.append(asyncio.create_task(background()))
        program.clock.passes(1.0)
        return "starts"

    async def background() -> None:
        await release.wait()
        for _ in range(4):
            found.append(await selector(1))

    selector = program.selector([("starts", starts), ("other", coroutine(program, "other", 2.0))])

    async def main() -> None:
        await selector(1)
        release.set()
        await tasks[0]

    asyncio.run(main())
    assert found == ["other", "starts", "other", "starts"]


def test_a_cancelled_coroutine_leaves_nothing_behind(program: Program) -> None:
    async def forever(x: int) -> None:
        await asyncio.sleep(3600)

    selector = program.selector([("forever", forever), ("other", forever)])

    async def main() -> None:
        task = asyncio.create_task(selector(1))
        await asyncio.sleep(0)
        assert len(detours) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert detours == []
    assert selector.explain(1).alternatives[0].status == "not tried"


def test_a_coroutine_closed_in_another_context_leaves_nothing_behind(program: Program) -> None:
    class Pause:
        def __await__(self) -> Iterator[None]:
            yield

    async def pauses(x: int) -> None:
        await Pause()

    selector = program.selector([("pauses", pauses), ("other", pauses)])
    started = selector(1)
    contextvars.copy_context().run(started.send, None)
    assert len(detours) == 1
    started.close()
    assert detours == []


def test_a_coroutine_that_fails_is_answered_by_another(program: Program) -> None:
    async def fails(x: int) -> str:
        raise ValueError("no")

    selector = program.selector([("fails", fails), ("y", coroutine(program, "y", 1.0))])

    async def main() -> str:
        with pytest.warns(RuntimeWarning, match="'fails' was disqualified: raised ValueError: no"):
            return str(await selector(1))

    assert asyncio.run(main()) == "y"


def test_coroutines_are_checked(program: Program) -> None:
    pairs = [
        (name, coroutine(program, answer, 1.0))
        for name, answer in (("x", "1"), ("y", "2"), ("z", "1"))
    ]
    selector = program.selector(pairs, check=0.0, restore=lambda x: lambda: None)

    async def main() -> None:
        assert await selector(1) == "1"
        with pytest.warns(RuntimeWarning, match="'y' was disqualified: wrong result"):
            assert await selector(1) == "1"
        assert await selector(1) == "1"

    asyncio.run(main())


def test_a_reference_coroutine_that_fails_is_the_one_that_is_disqualified(program: Program) -> None:
    failing: list[bool] = []

    async def first(x: int) -> str:
        if failing:
            raise ValueError("no")
        return "same"

    selector = program.selector([("x", first), ("y", coroutine(program, "same", 1.0))], check=0.0)

    async def main() -> None:
        assert await selector(1) == "same"
        failing.append(True)
        with pytest.warns(RuntimeWarning, match="'x' was disqualified: raised ValueError: no"):
            assert await selector(1) == "same"

    asyncio.run(main())


def test_children_are_kept_in_the_store(program: Program) -> None:
    store = DictStore()
    for _ in range(2):
        inner = program.selector({"x": 3.0, "y": 1.0}, name="inner", store=store)
        pairs = [("nested", through(inner)), ("flat", program.function("flat", 9.0))]
        outer = program.selector(pairs, name="outer", store=store)
        calls_until_settled(outer, 1)
        assert children(outer, 1)["nested"] == (("inner", "(1,)"),)
    assert outer.explain(1).source == "stored"
