"""Alternatives that are coroutines: timed to their end, nested, checked and cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from typing import Any

import pytest
from fake_program import Program
from nested_selectors import children

from bestof import BestOf
from bestof.selection.trials.trial import detours


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
