"""Trials whose times arrive later, on a device that works while the program continues."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
from typing import Any

import pytest
from fake_device import FakeDevice

from bestof import BestOf
from bestof.errors import BestofWarning, InvalidArgument
from bestof.selection import Alternative
from bestof.selection.call.attempt import Attempt

SECONDS = {"slow": 3.0, "fast": 1.0, "middle": 2.0}


class Clock:
    """Whose times may not become evidence."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return float("nan")


clock = Clock()


def selector(device: FakeDevice, seconds: dict[str, float] = SECONDS, **options: Any) -> BestOf:
    pairs = [(name, device.function(name, taken)) for name, taken in seconds.items()]
    options.setdefault("policy", "rounds:rounds=2")
    return BestOf("it", pairs, lambda size: size, timer=device, clock=clock, store="off", **options)


def test_unclaimed_times_are_dropped_with_their_problems() -> None:
    device = FakeDevice()
    it = selector(device, max_problems=4)
    for size in range(50):
        it(size)
        assert it._knowledge.tunings[size].out is not None
    gc.collect()
    waiting = [
        one for one in gc.get_objects() if type(one) is Attempt and one.owner is it._knowledge
    ]
    assert 0 < len(waiting) <= 8


def samples(it: BestOf, size: int) -> dict[str, float | None]:
    return {row.name: row.seconds for row in it.explain(size).alternatives}


def answers(it: BestOf, device: FakeDevice, calls: int) -> list[str]:
    """What so many calls give, each of which is done before the next."""
    got = []
    for _ in range(calls):
        got.append(it(1))
        device.finishes()
    return got


def test_the_decision_comes_from_the_devices_times() -> None:
    device = FakeDevice()
    it = selector(device)
    assert set(answers(it, device, 30)) == set(SECONDS)
    assert it.explain(1).decision == "fast"
    assert samples(it, 1) == SECONDS
    assert it.trials == 6
    assert it.trial_seconds == 12.0
    assert it.settled_calls > 10
    asked = clock.asked
    assert {it(1) for _ in range(2000)} == {"fast"}
    assert (
        clock.asked == asked
    )  # nobody watches for drift by a clock that sees only how long ordering takes


def test_while_a_time_is_out_calls_go_to_the_best_known() -> None:
    device = FakeDevice()
    it = selector(device)
    assert [it(1) for _ in range(4)] == [
        "slow",
        "slow",
        "slow",
        "slow",
    ]  # the first trial, then the first in the list
    assert len(device.timings) == 1
    device.finishes()
    assert [it(1) for _ in range(3)] == ["fast", "slow", "slow"]  # tried; its time is out
    device.finishes()
    assert [it(1) for _ in range(3)] == [
        "middle",
        "fast",
        "fast",
    ]  # tried; the fast one is known by now
    assert len(device.timings) == 3


def test_a_time_that_never_comes_stops_the_search_and_nothing_else() -> None:
    device = FakeDevice()
    it = selector(device)
    it(1)
    device.finishes()
    assert [it(1) for _ in range(500)] == ["fast"] + ["slow"] * 499
    assert it.trials == 1
    assert it.explain(1).decision is None
    it.flush()  # the end of the program
    assert it(2) == "slow"  # other problems have their own trials
    assert len(device.timings) == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_problems_do_not_wait_for_each_other(order: tuple[int, ...]) -> None:
    device = FakeDevice()
    it = selector(device)
    for _ in range(12):
        begun = len(device.timings)
        for size in range(3):
            it(size)
        new = list(range(begun, len(device.timings)))
        for place in order:  # one becomes ready, and each problem is called, before the next does
            if place < len(new):
                device.finishes(new[place])
            for size in range(3):
                it(size)
        device.finishes()
    for size in range(3):
        assert it.explain(size).decision == "fast"
        assert samples(it, size) == SECONDS


def test_nothing_is_tried_or_asked_while_a_graph_is_captured() -> None:
    device = FakeDevice()
    it = selector(device)
    device.capturing = True
    assert [it(1) for _ in range(5)] == ["slow"] * 5
    device.capturing = False
    assert it(1) == "slow"
    device.finishes()
    assert it(1) == "fast"
    device.finishes()
    device.capturing = (
        True  # the time is known, and stays where it is: asking would break the capture
    )
    asked = device.asked
    assert [it(1) for _ in range(5)] == ["slow"] * 5
    assert device.asked == asked
    device.capturing = False
    for _ in range(20):
        it(1)
        device.finishes()
    assert it.explain(1).decision == "fast"
    device.capturing = True
    assert [it(1) for _ in range(40)] == ["fast"] * 40


@pytest.mark.parametrize("when", ["start", "stop", "seconds", "paused"])
def test_a_lost_device_warns_once_and_the_best_known_answers(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    it = selector(device)
    for _ in range(3):
        it(1)
        device.finishes()
    lost = RuntimeError("CUDA error: unspecified launch failure")

    def fail(*_: Any) -> None:
        raise lost

    if when == "paused":
        monkeypatch.setattr(FakeDevice, "paused", property(fail))
    elif when == "start":
        monkeypatch.setattr(device, "start", fail)
    else:
        monkeypatch.setattr("fake_device.FakeTiming." + when, fail)
    with pytest.warns(
        BestofWarning, match="its timer raised RuntimeError: CUDA error: unspecified launch failure"
    ):
        assert all(it(1) in SECONDS for _ in range(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [it(1) for _ in range(5)] == ["fast"] * 5
        assert [it(2) for _ in range(3)] == ["slow"] * 3
    assert not any(row.status == "disqualified" for row in it.explain(1).alternatives)


def test_a_time_that_says_nothing_does_not_count() -> None:
    device = FakeDevice()
    it = selector(device, {"nonsense": float("nan"), "fast": 1.0})
    for _ in range(6):
        it(1)
        device.finishes()
    assert samples(it, 1)["nonsense"] is None


def test_a_failing_alternative_is_out_and_the_answering_one_is_timed_alone() -> None:
    device = FakeDevice()

    def failing(_: int) -> str:
        raise RuntimeError("out of memory")

    pairs = [
        ("slow", device.function("slow", 3.0)),
        ("failing", failing),
        ("fast", device.function("fast", 1.0)),
    ]
    it = BestOf("it", pairs, lambda size: size, timer=device, policy="rounds:rounds=2", store="off")
    with pytest.warns(
        BestofWarning, match="'failing' was disqualified: raised RuntimeError: out of memory"
    ):
        answers(it, device, 20)
    assert it.explain(1).decision == "fast"
    assert samples(it, 1) == {"slow": 3.0, "failing": None, "fast": 1.0}


def test_a_trial_around_one_that_is_out_does_not_count() -> None:
    device = FakeDevice()
    inner = selector(device)
    now = 0.0

    def advancing() -> float:
        nonlocal now
        now += 1.0
        return now

    pairs = [("one", inner), ("two", lambda size: "two")]
    options = {"clock": advancing, "policy": "rounds:rounds=1", "store": "off"}
    outer = BestOf("outer", pairs, lambda size: size, **options)
    assert outer(1) == "slow"
    device.finishes()
    assert samples(outer, 1) == {"one": None, "two": None}


def test_the_timer_gets_the_arguments_and_a_copy_shares_it() -> None:
    device = FakeDevice()
    it = copy.deepcopy(selector(device))
    assert it(7) == "slow"
    assert device.args == (7,)


def test_groups_are_refused() -> None:
    device = FakeDevice()
    with pytest.raises(InvalidArgument, match=r"timer: a group is timed by the clock"):
        BestOf("it", [Alternative("a", [str, str])], lambda size: size, timer=device)
