"""The promises of every selector, whatever its policy, guard, watch and store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bestof import Alternative, BestOf, use_store
from bestof.errors import BestofWarning
from bestof.selection.policies import Fixed, Window
from bestof.selection.trials.trial import current_trial, detours

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "the paper's": lambda: {"rounds": 2},
    "race": lambda: {"policy": "race:tie=0.1"},
    "window": lambda: {"policy": Window(0, 10)},
    "fixed": lambda: {"policy": Fixed("third")},
    "checked": lambda: {"check": 0.0},
    "checked by a function": lambda: {"check": lambda expected, got: expected == got},
    "restored": lambda: {"restore": lambda *args: lambda: None, "check": 0.0},
    "watched": lambda: {"check": 0.0, "check_every": 3},
    "with neighbours": lambda: {"neighbours": lambda problem: [problem - 1]},
    "listened to": lambda: {"on_event": [].append},
    "forgetful": lambda: {"max_problems": 2},
    "not watched for drift": lambda: {"drift": False},
}


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    use_store(None)
    yield KINDS[request.param]()
    assert detours == []
    assert current_trial.get() is None


class Ticks:
    """A clock on which the alternative that runs decides what a call takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            self.now += seconds
            return function(*args)

        return called


SECONDS = {"first": 3.0, "second": 1.0, "third": 2.0}


def selector(options: dict[str, Any], function: Callable[..., Any] = abs) -> BestOf:
    ticks = Ticks()
    pairs = [(name, ticks.taking(seconds, function)) for name, seconds in SECONDS.items()]
    return BestOf("contract", pairs, lambda x, *rest: abs(x), clock=ticks, **options)


def test_every_call_is_answered_as_by_any_alternative(options: dict[str, Any]) -> None:
    it = selector(options)
    for call in range(300):
        assert it(-(call % 3)) == call % 3


def test_the_best_is_found_or_the_one_that_was_ordered(options: dict[str, Any]) -> None:
    it = selector(options)
    for _ in range(100):
        it(5)
    assert it.explain(5).decision == (
        "third" if isinstance(options.get("policy"), Fixed) else "second"
    )
    assert it.best_method_has_been_found(-5)


def test_the_argument_reaches_the_alternative_itself(options: dict[str, Any]) -> None:
    ticks, argument = Ticks(), object()
    pairs = [(name, ticks.taking(seconds, lambda x: x)) for name, seconds in SECONDS.items()]
    it = BestOf("contract", pairs, lambda x: 0, clock=ticks, **options)
    assert all(it(argument) is argument for _ in range(60))


def test_an_error_of_the_call_comes_out_as_it_is(options: dict[str, Any]) -> None:
    it = selector(options, lambda x: 1 // x)
    for _ in range(40):
        with pytest.raises(ZeroDivisionError):
            it(0)
        assert it(1) == 1
    assert all(row.reason is None for row in it.explain(0).alternatives)


def test_one_broken_alternative_is_warned_of_once(options: dict[str, Any]) -> None:
    if isinstance(options.get("policy"), Fixed):
        pytest.skip("an ordered alternative is called as it is")
    ticks = Ticks()

    def broken(x: int) -> int:
        raise OSError("gone")

    pairs = [
        ("first", ticks.taking(2.0, abs)),
        ("broken", broken),
        ("third", ticks.taking(1.0, abs)),
    ]
    it = BestOf("contract", pairs, lambda x: x, clock=ticks, **options)
    with pytest.warns(BestofWarning) as caught:
        assert [it(4) for _ in range(200)] == [4] * 200
    assert [str(warning.message).count("'broken' was disqualified") for warning in caught] == [1]
    assert it.explain(4).decision == "third"


def test_an_interrupt_passes_and_leaves_the_selector_whole(options: dict[str, Any]) -> None:
    interrupting = [True] * 3

    def function(x: int) -> int:
        if interrupting and interrupting.pop():
            raise KeyboardInterrupt
        return x

    it = selector(options, function)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            it(1)
    assert [it(1) for _ in range(100)] == [1] * 100
    assert it.explain(1).settled


def test_it_calls_itself_with_smaller_problems(options: dict[str, Any]) -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * it(n - 1)

    it = selector(options, factorial)
    assert [it(6) for _ in range(40)] == [720] * 40


def test_threads_share_it(options: dict[str, Any]) -> None:
    it = selector(options)
    wrong: list[object] = []

    def work() -> None:
        for call in range(100):
            answer = it(-(call % 3))
            if answer != call % 3:
                wrong.append(answer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_tasks_share_it(options: dict[str, Any]) -> None:
    async def alternative(x: int) -> int:
        await asyncio.sleep(0)
        return x

    it = BestOf("contract", [(name, alternative) for name in SECONDS], abs, **options)

    async def task(number: int) -> list[int]:
        return [await it(number) for _ in range(30)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(task(number) for number in range(4)))

    assert asyncio.run(main()) == [[number] * 30 for number in range(4)]


def test_groups_keep_their_passes_whole(options: dict[str, Any]) -> None:
    names = {"check": None, "check_every": None}
    ticks = Ticks()
    alternatives = [
        Alternative(
            name,
            [
                ticks.taking(seconds, lambda x, n=name: n),
                ticks.taking(seconds, lambda x, n=name: n),
            ],
        )
        for name, seconds in SECONDS.items()
    ]
    it = BestOf("contract", alternatives, lambda x: x, clock=ticks, **{**options, **names})
    for _ in range(100):
        assert it(0, 1) == it(1, 1)
    assert it.explain(1).settled


def test_the_report_shows_the_choices(options: dict[str, Any]) -> None:
    it = selector(options)
    for _ in range(100):
        it(5)
    (problem,) = it.report().problems
    assert (problem.problem, problem.decision) == ("5", it.explain(5).decision)
    assert [row.name for row in problem.alternatives if row.status == "chosen"] == [
        problem.decision
    ]
    assert f"* {problem.decision}" in str(it.report())
