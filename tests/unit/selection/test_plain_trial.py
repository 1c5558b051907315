"""Plain trials book the same as attempts. Every program here runs once each way."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fake_program import Program

from bestof import BestOf
from bestof.selection.call.chooser import Chooser
from bestof.selection.policies import Rounds, Window

PROGRAMS: dict[str, Callable[[Program, dict[str, Any]], list[BestOf]]] = {}


def program_of(name: str) -> Callable[..., Any]:
    def keep(function: Any) -> Any:
        PROGRAMS[name] = function
        return function

    return keep


@program_of("calls")
def _calls(program: Program, options: dict[str, Any]) -> list[BestOf]:
    selector = program.selector({"a": 2.0, "b": 1.0, "c": 3.0}, rounds=3, **options)
    for call in range(30):
        selector(call % 3)
    return [selector]


@program_of("inside each other")
def _nested(program: Program, options: dict[str, Any]) -> list[BestOf]:
    inner = program.selector({"x": 2.0, "y": 1.0}, name="inner", **options)
    outer = program.selector(
        [("a", inner), ("b", program.function("b", 0.5))], name="outer", **options
    )
    for call in range(30):
        outer(call % 3)
    return [inner, outer]


@program_of("into itself")
def _recursive(program: Program, options: dict[str, Any]) -> list[BestOf]:
    def deeper(n: int) -> Any:
        program.clock.passes(1.0)
        return selector(n)

    selector = program.selector([("deeper", deeper), ("b", program.function("b", 2.0))], **options)
    for call in range(20):
        selector(call % 2)
    return [selector]


@program_of("failures")
def _failing(program: Program, options: dict[str, Any]) -> list[BestOf]:
    pairs = [
        ("a", program.function("a", 2.0)),
        ("bad", program.failing("bad", OSError("no"))),
        ("c", program.function("c", 1.0)),
    ]
    selector = program.selector(pairs, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(20):
            selector(call % 2)
    return [selector]


@program_of("interrupts")
def _interrupted(program: Program, options: dict[str, Any]) -> list[BestOf]:
    selector = program.selector(
        [("a", program.function("a", 2.0)), ("b", program.failing("b", KeyboardInterrupt()))],
        **options,
    )
    for _ in range(6):
        try:
            selector(1)
        except KeyboardInterrupt:
            program.calls.append("interrupted")
    return [selector]


@program_of("a clock that goes backwards")
def _backwards(program: Program, options: dict[str, Any]) -> list[BestOf]:
    selector = program.selector({"a": 2.0, "b": -1.0, "c": float("nan")}, **options)
    for _ in range(9):
        selector(1)
        program.clock.now = 0.0
    return [selector]


@program_of("groups")
def _groups(program: Program, options: dict[str, Any]) -> list[BestOf]:
    costs = {"a": 2.0, "b": 1.0, "c": 3.0}
    pairs = [
        (name, [program.function(f"{name}{stage}", costs[name]) for stage in range(3)])
        for name in costs
    ]
    selector = program.selector(pairs, **options)
    stages = (
        0,
        1,
        2,
        0,
        0,
        2,
        1,
        1,
        2,
        1,
        0,
    )  # whole passes, one inside another, one that is not finished, an orphan
    for call in range(99):
        selector(stages[call % len(stages)], 1)
    return [selector]


@program_of("groups that fail")
def _failing_groups(program: Program, options: dict[str, Any]) -> list[BestOf]:
    def fails(error: BaseException) -> list[Any]:
        return [program.function("begun", 1.0), program.failing("failing", error)]

    whole = [program.function("whole0", 1.0), program.function("whole1", 1.0)]
    selector = program.selector(
        [
            ("whole", whole),
            ("bad", fails(OSError("no"))),
            ("stopped", fails(KeyboardInterrupt())),
            ("again", whole),
        ],
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(24):
            try:
                program.calls.append(selector(call % 2, 1))
            except KeyboardInterrupt:
                program.calls.append("interrupted")
    return [selector]


@program_of("coroutines")
def _coroutines(program: Program, options: dict[str, Any]) -> list[BestOf]:
    def alternative(name: str, seconds: float) -> Any:
        async def called(n: int) -> str:
            program.calls.append(name)
            await asyncio.sleep(0)
            program.clock.passes(seconds)
            return name

        return called

    selector = program.selector(
        [("a", alternative("a", 2.0)), ("b", alternative("b", 1.0))], **options
    )

    async def main() -> None:
        for _ in range(6):
            program.calls.append(await selector(1))

    asyncio.run(main())
    return [selector]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("listened", [False, True])
def test_a_plain_trial_books_the_same_as_an_attempt(
    name: str, listened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_ones = 0
    really = Chooser._try

    def counted(*args: Any) -> Any:
        nonlocal plain_ones
        plain_ones += 1
        return really(*args)

    monkeypatch.setattr(Chooser, "_try", counted)
    told: list[Any] = []
    for restore in (
        None,
        lambda *args: lambda: None,
    ):  # with something to restore every trial is an Attempt
        program, events, plain_ones = Program(), [], 0
        options: dict[str, Any] = {"restore": restore, "store": "off"}
        if listened:
            options["on_event"] = events.append
        selectors = PROGRAMS[name](program, options)
        assert (plain_ones > 0) == (restore is None)
        reports = [
            (str(one.report()), one.trials, one.trial_seconds, one.loss_seconds)
            for one in selectors
        ]
        told.append(
            (
                program.calls,
                repr(events),
                reports,
                repr([one.journal.entries() for one in selectors]),
            )
        )
    assert told[0] == told[1]


def test_a_policy_that_goes_by_steps_is_asked_at_the_call(program: Program) -> None:
    window = Window(0, 1, Rounds(3))
    selector = program.selector({"a": 2.0, "b": 1.0}, policy=window)
    assert [selector(1), selector(1)] == ["a", "b"]
    window.step()
    assert [selector(1), selector(1)] == ["b", "b"]  # a would be next, but its window has ended
    assert selector.explain(1).decision == "b"


def test_a_search_that_was_asked_ahead_is_asked_again_after_a_drop(program: Program) -> None:
    selector = program.selector({"a": 2.0, "b": 1.0, "c": 3.0}, rounds=3)
    assert [selector(1), selector(1)] == ["a", "b"]
    with selector._knowledge.lock:
        selector._knowledge.tunings[1,].disqualify(2, "it failed")
    assert [selector(1), selector(1)] == ["a", "b"]
