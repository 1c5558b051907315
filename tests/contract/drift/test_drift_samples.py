"""Samples of settled calls: which count, what they call, and how far apart they lie."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from drifting_machine import WINDOW, Machine, calls, drifts, settled

from bestof import BestOf
from bestof.selection.state.sample_interval import FIRST, calls_between


def test_samples_with_an_unsettled_choice_inside_do_not_count() -> None:
    machine = Machine(a=3.0, b=1.0)
    inner = BestOf(
        "inner",
        [("x", lambda n: None), ("y", lambda n: None)],
        lambda n: n,
        policy="rounds:rounds=1",
        store="off",
    )
    fresh = iter(range(10**9))
    selector = settled(machine)
    machine.seconds["b"] = 9.0
    machine.inside = lambda: inner(next(fresh))
    calls(selector, 2 * WINDOW)
    assert drifts(selector) == []
    machine.inside = lambda: inner(0)
    calls(selector, 2 * WINDOW)
    assert drifts(selector) == [("b", 1.0, 9.0)]


def test_calls_inside_a_trial_are_no_samples() -> None:
    machine = Machine(a=3.0, b=1.0)
    inner = settled(machine)
    machine.seconds["b"] = 40.0
    outer = BestOf(
        "outer", [("x", lambda: inner(1)), ("y", lambda: inner(1))], lambda: 1, 10**6, store="off"
    )
    for _ in range(4 * WINDOW):
        outer()
    assert drifts(inner) == []
    assert inner._settled[1].calls == 0


def test_a_parent_waits_until_its_child_has_raced_again() -> None:
    machine = Machine(a=3.0, b=1.0, flat=20.0)
    inner = BestOf(
        "inner",
        [(name, machine.alternative(name)) for name in "ab"],
        lambda: 1,
        3,
        clock=machine.clock,
        store="off",
    )
    outer = BestOf(
        "outer",
        [("nested", lambda: [inner() for _ in range(3)]), ("flat", machine.alternative("flat"))],
        lambda: 1,
        3,
        clock=machine.clock,
        store="off",
    )
    for _ in range(40):
        outer()
    assert outer.explain().decision == "nested"
    machine.seconds["b"] = 9.0
    for _ in range(6 * WINDOW):
        outer()
    assert inner.explain().decision == "a"
    assert len(drifts(inner)) == 1
    assert outer.explain().decision == "nested"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_clock_that_tells_nonsense_is_no_drift(seconds: float) -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    times = iter(range(10**9))
    selector._watch._clock = lambda: next(times) * seconds
    calls(selector, 4 * WINDOW)
    assert drifts(selector) == []
    assert selector.explain(1).decision == "b"


def test_a_winner_that_raises_when_sampled_raises_and_is_sampled_again() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    winner = selector._settled[1]

    def fails() -> None:
        raise KeyError("mine")

    winner.sample_at, machine.inside = winner.calls + 1, fails
    with pytest.raises(KeyError, match="mine"):
        selector(1)
    assert winner.sample_at - winner.calls == calls_between(-1.0, winner.calls)
    assert selector.explain(1).decision == "b"


def test_a_sample_calls_the_winner_once_with_the_same_arguments() -> None:
    seen: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        seen.append((args, kwargs))
        return args

    selector = BestOf("seen", [("a", keep), ("b", keep)], lambda *args, **kwargs: 1, 1, store="off")
    argument = object()
    for _ in range(FIRST + 2):
        assert selector(argument, key=argument) == (argument,)
    assert selector._settled[1].calls == FIRST
    assert seen == [((argument,), {"key": argument})] * (FIRST + 2)


def test_many_threads_reopen_one_race() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    machine.seconds.update(b=9.0)

    def work() -> None:
        for _ in range(4 * WINDOW):
            assert selector(1) in ("a", "b")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert selector.explain(1).settled
    assert selector._knowledge.tunings == {}


def test_a_sample_never_waits_for_the_lock() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with selector._knowledge.lock:
            held.set()
            assert leave.wait(250)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(250)
    try:
        machine.seconds["b"] = 9.0
        for _ in range(WINDOW):
            assert selector(1) == "b"
    finally:
        leave.set()
        holder.join()
    assert drifts(selector) == []


def test_samples_are_spread_and_cost_a_thousandth() -> None:
    for seconds in (1e-7, 1e-6, 1e-4, 1e-2, 1.0):
        gaps = [calls_between(seconds, calls) for calls in range(1, 4000, 37)]
        aim = max(16, int(0.02 / seconds))
        assert min(gaps) >= aim // 2
        assert max(gaps) <= aim // 2 + aim
        assert abs(sum(gaps) / len(gaps) / aim - 1) < 0.1
        assert {gap % 2 for gap in gaps} == {0, 1}
        assert sum(gaps) * seconds >= 1000 * 15e-6 * len(gaps)  # 15 us: a sample on a slow machine
    assert (
        calls_between(-1.0, 5)
        == calls_between(float("nan"), 5)
        == calls_between(float("inf"), 5)
        == 1024
    )
    assert calls_between(0.0, 5) <= 300_000
