"""What settled problems do when their winner drifts; the last test runs all others in plain Python
too.

One suite, hence past 400 lines.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bestof import Alternative, BestOf, view
from bestof.errors import BestofWarning
from bestof.selection.hot_path import HotPath, NativeHotPath, PythonHotPath
from bestof.selection.journal import DecisionEntry, DriftEntry, TrialEntry
from bestof.selection.policies import Fixed, Race, Window
from bestof.selection.report import Report, report_from_dict
from bestof.selection.sample_interval import FIRST, calls_between
from bestof.selection.store.memory import MemoryStore
from bestof.selection.trial import current_trial, detours
from bestof.selection.winner import NEVER

# On the fake clock calls take seconds, so samples lie 8 to 24 calls apart: nine of them within so
# many.
WINDOW = FIRST + 9 * 24


class Machine:
    """A clock, and alternatives whose seconds a call can be changed."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.calls: list[str] = []
        self.inside: Callable[[], object] = lambda: None

    def clock(self) -> float:
        return self.now

    def alternative(self, name: str) -> Callable[..., str]:
        def called(*args: Any) -> str:
            self.calls.append(name)
            self.now += self.seconds[name]
            self.inside()
            return name

        return called

    def selector(self, **options: Any) -> BestOf:
        pairs = [(name, self.alternative(name)) for name in self.seconds]
        options = {"store": "off", "policy": "rounds:rounds=3", **options}
        return BestOf("drifting", pairs, lambda *args: args[0], clock=self.clock, **options)


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Any:
    yield
    assert detours == []
    assert current_trial.get() is None


def settled(machine: Machine, **options: Any) -> BestOf:
    selector = machine.selector(**options)
    for _ in range(3 * len(machine.seconds)):
        selector(1)
    assert selector.explain(1).settled
    return selector


def drifts(selector: BestOf) -> list[tuple[str, float, float]]:
    return [entry[1:] for entry in selector.journal.entries() if isinstance(entry, DriftEntry)]


def calls(selector: BestOf, count: int = WINDOW) -> None:
    for _ in range(count):
        selector(1)


def test_a_winner_that_slows_loses_to_one_that_did_not() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    machine.seconds["b"] = 4.0
    calls(selector)
    assert drifts(selector) == [("b", 1.0, 4.0)]
    assert (selector.explain(1).decision, selector.explain(1).source) == ("c", "measured")
    samples = {row.name: row.seconds for row in selector.explain(1).alternatives}
    assert samples == {"a": 3.0, "b": 4.0, "c": 2.0}


def test_a_reopened_race_has_the_winner_in_front_and_fresh_samples() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    machine.seconds["b"] = 1.5
    while selector.explain(1).settled:
        machine.calls.clear()
        selector(1)
    assert machine.calls == ["b"]
    assert all(row.trials == 0 for row in selector.explain(1).alternatives)
    machine.calls.clear()
    calls(selector, 9)
    assert machine.calls == ["b", "a", "c"] * 3
    assert selector.explain(1).decision == "b"


def test_a_near_tie_stays_with_the_winner() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, policy="race")
    machine.seconds.update(a=2.0, b=2.0)
    calls(selector, 2 * WINDOW)
    assert len(drifts(selector)) == 1
    assert selector.explain(1).decision == "b"


def test_a_machine_that_slows_as_a_whole_races_once() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)
    selector = settled(machine)
    for name in machine.seconds:
        machine.seconds[name] *= 3
    calls(selector, 20 * WINDOW)
    assert drifts(selector) == [("b", 1.0, 3.0)]
    assert selector.explain(1).decision == "b"


def test_a_decision_made_on_a_busy_machine_is_repaired_and_once() -> None:
    machine = Machine(a=30.0, b=60.0)
    selector = settled(machine)
    assert selector.explain(1).decision == "a"
    machine.seconds.update(a=3.0, b=1.0)
    calls(selector, 20 * WINDOW)
    assert drifts(selector) == [("a", 30.0, 3.0)]
    assert selector.explain(1).decision == "b"


def test_a_winner_that_is_always_faster_outside_of_races_races_once_for_that() -> None:
    machine = Machine(a=3.0, b=4.0)
    names = machine.calls

    def warm_caches() -> None:
        if names[-2:] == ["a", "a"]:
            machine.now -= 2.0

    machine.inside = warm_caches
    selector = settled(machine)
    calls(selector, 40 * WINDOW)
    assert drifts(selector) == [("a", 3.0, 1.0)]
    assert selector.explain(1).decision == "a"


def test_what_no_race_brings_back_is_raced_ever_more_seldom() -> None:
    machine = Machine(a=1000.0, b=1.0)
    selector = settled(machine)

    def ever_slower() -> None:
        machine.seconds["b"] *= 1.01

    machine.inside = ever_slower
    reopened_at = []
    for call in range(60 * WINDOW):
        if selector(1) == "b" and machine.seconds["b"] > 500:
            machine.seconds["b"] = 1.0
        if len(drifts(selector)) > len(reopened_at):
            reopened_at.append(call)
    gaps = [later - earlier for earlier, later in pairwise(reopened_at)]
    assert 3 <= len(reopened_at) <= 8
    assert gaps[-1] > 4 * gaps[0]


def test_a_rise_within_the_hysteresis_is_nothing() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    machine.seconds["b"] = 1.2
    calls(selector, 10 * WINDOW)
    assert drifts(selector) == []
    assert selector.trials == 6


def test_a_burst_is_nothing() -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine)
    for _ in range(20):
        machine.seconds["b"] = 50.0
        calls(selector, 4 * 8)
        machine.seconds["b"] = 1.0
        calls(selector, WINDOW)
    assert drifts(selector) == []


def test_each_problem_has_a_drift_of_its_own() -> None:
    machine = Machine(a=3.0, b=1.0)
    slow = machine.alternative("b")

    def b(problem: int) -> str:
        if problem == 2:
            machine.now += 9.0
        return slow(problem)

    selector = BestOf(
        "two", [("a", machine.alternative("a")), ("b", b)], lambda x: x % 2, clock=machine.clock
    )
    for _ in range(50):
        selector(0)
        selector(1)
    for _ in range(WINDOW):
        selector(2)
        selector(1)
    assert [
        entry.problem for entry in selector.journal.entries() if isinstance(entry, DriftEntry)
    ] == [0]
    assert (selector.explain(0).decision, selector.explain(1).decision) == ("a", "b")


def test_the_story_is_told_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bestof")
    heard: list[object] = []
    machine = Machine(a=0.003, b=0.001)
    selector = settled(machine, on_event=heard.append)
    machine.seconds["b"] = 0.004
    calls(selector)
    kinds = [entry for entry in heard if not isinstance(entry, TrialEntry)]
    assert [type(entry) for entry in kinds] == [DecisionEntry, DriftEntry, DecisionEntry]
    assert drifts(selector) == [("b", pytest.approx(0.001), pytest.approx(0.004))]
    story = (
        "b had become slower, 4.00 ms against the 1.00 ms at which it won; the race was reopened"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "BestOf('drifting'), problem 1: b (measured), saves 2.00 ms a call over 'a'",
        f"BestOf('drifting'), problem 1: drift: {story}",
        "BestOf('drifting'), problem 1: a (measured)",
    ]
    assert f"earlier {story}" in str(selector.explain(1))
    assert f"earlier {story}" in str(selector.report())
    told = Report((selector.report(),))
    assert report_from_dict(json.loads(view.render(told, "json"))) == told
    for format in ("text", "html"):
        assert "[measured, 1 drift]" in view.render(told, format)


def test_a_decision_from_the_store_drifts_too_and_the_new_one_is_kept() -> None:
    store = MemoryStore()
    machine = Machine(a=3.0, b=1.0)
    settled(machine, store=store)
    machine.seconds.update(a=30.0, b=40.0)
    again = machine.selector(store=store)
    again(1)
    assert again.explain(1).source == "stored"
    calls(again, 2 * WINDOW)
    assert drifts(again) == [("b", 1.0, 40.0)]
    (record,) = store.records()
    assert record.decision == "a"
    assert {one.alternative: one.samples for one in record.evidence} == {
        "a": (30.0,) * 3,
        "b": (40.0,) * 3,
    }


def test_half_a_reopened_race_leaves_the_store_as_it_was() -> None:
    store = MemoryStore()
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, store=store)
    before = store.records()
    machine.seconds["b"] = 4.0
    while selector.explain(1).settled:
        selector(1)
    calls(selector, 3)
    selector.flush()
    assert store.records() == before


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Fixed("b")},
        {"policy": Window(0, 100)},
        {"drift": False},
        {"check": lambda expected, got: True, "check_every": 5},
    ],
    ids=["fixed", "window", "switched off", "watched"],
)
def test_what_is_not_to_be_raced_again_is_not(options: dict[str, Any]) -> None:
    machine = Machine(a=3.0, b=1.0)
    selector = settled(machine, **options)
    machine.seconds["b"] = 40.0
    calls(selector, 4 * WINDOW)
    assert drifts(selector) == []
    assert selector.explain(1).decision == "b"


def test_orders_are_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.pin("drifting", "b")
    machine = Machine(a=3.0, b=1.0)
    pinned = settled(machine, store=store)
    monkeypatch.setenv("BESTOF_FORCE", "drifting=b")
    forced = settled(machine)
    machine.seconds["b"] = 40.0
    for selector in (pinned, forced):
        calls(selector, 2 * WINDOW)
        assert drifts(selector) == []
        assert selector._settled[1].sample_at == NEVER


def test_an_environment_variable_switches_it_off_and_an_argument_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(a=3.0, b=1.0)
    monkeypatch.setenv("BESTOF_DRIFT", "off")
    silent, told = settled(machine), settled(machine, drift=True)
    monkeypatch.setenv("BESTOF_DRIFT", "on")
    usual = settled(machine)
    machine.seconds["b"] = 40.0
    for selector in (silent, told, usual):
        calls(selector)
    assert [len(drifts(selector)) for selector in (silent, told, usual)] == [0, 1, 1]


def test_a_group_is_watched_by_the_sum_over_its_stages() -> None:
    machine = Machine(a0=3.0, a1=3.0, b0=1.0, b1=1.0)
    pairs = [(name, [machine.alternative(f"{name}{stage}") for stage in (0, 1)]) for name in "ab"]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")

    def passes(count: int) -> None:
        for _ in range(count):
            first = selector(0, 1)
            assert selector(1, 1) == f"{first[0]}1"

    passes(6)
    assert selector.explain(1).decision == "b"
    machine.seconds.update(b0=1.2, b1=0.9)  # within the hysteresis, though one stage alone is not
    passes(2 * WINDOW)
    assert drifts(selector) == []
    machine.seconds.update(b1=9.0)
    passes(2 * WINDOW)
    assert drifts(selector) == [("b", 2.0, pytest.approx(10.2))]
    assert selector.explain(1).decision == "a"


def settled_group() -> tuple[Machine, BestOf]:
    """A group that was won by b."""
    machine = Machine(a0=3.0, a1=3.0, b0=1.0, b1=1.0)
    pairs = [(name, [machine.alternative(f"{name}{stage}") for stage in (0, 1)]) for name in "ab"]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    for _ in range(6):
        selector(0, 1)
        selector(1, 1)
    return machine, selector


def reopen(machine: Machine, selector: BestOf) -> None:
    """b slows until its race is run again, and its last pass is finished."""
    machine.seconds.update(b0=9.0)
    while selector.explain(1).settled:
        assert [selector(0, 1), selector(1, 1)] == ["b0", "b1"]


def test_passes_of_the_hot_path_are_finished_by_who_began_them() -> None:
    machine, selector = settled_group()
    assert [selector(0, 1) for _ in range(5)] == ["b0"] * 5
    reopen(machine, selector)
    begun: list[str] = []
    other = threading.Thread(target=lambda: begun.append(selector(0, 1)))
    other.start()
    other.join()
    trials = selector.trials
    assert begun == ["b0"]
    assert [selector(1, 1) for _ in range(5)] == [
        "b1"
    ] * 5  # of passes that this thread began before
    assert selector.trials == trials


def test_a_reopened_group_races_at_once() -> None:
    machine, selector = settled_group()
    reopen(machine, selector)
    trials = selector.trials
    machine.calls.clear()
    for _ in range(6):
        selector(0, 1)
        selector(1, 1)
    assert machine.calls == ["b0", "b1", "a0", "a1"] * 3
    assert (selector.explain(1).decision, selector.trials) == ("a", trials + 12)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_thread_that_finishes_the_passes_of_others_is_found_out(from_the_start: bool) -> None:
    machine, selector = settled_group()
    reopen(machine, selector)
    with ThreadPoolExecutor(1) as backward:
        for number in range(200):
            selector(0, 1)
            if from_the_start or number > 80:
                backward.submit(selector, 1, 1).result()
            else:
                selector(1, 1)
    assert selector.explain(1).decision == "a"


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


def test_a_sample_calls_the_winner_once_with_the_very_arguments() -> None:
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


def test_a_disqualified_alternative_does_not_come_back() -> None:
    machine = Machine(a=3.0, b=1.0, c=2.0)

    def broken(x: int) -> str:
        machine.calls.append("broken")
        raise OSError("gone")

    pairs = [*((name, machine.alternative(name)) for name in "abc"), ("broken", broken)]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    with pytest.warns(BestofWarning, match="'broken' was disqualified"):
        calls(selector, 20)
    machine.seconds["b"] = 9.0
    calls(selector, 2 * WINDOW)
    assert len(drifts(selector)) == 1
    assert selector.explain(1).decision == "c"
    assert machine.calls.count("broken") == 1
    reason = selector.explain(1).alternatives[-1].reason
    assert reason is not None
    assert reason.startswith("raised OSError: gone, on 20")


def test_what_no_longer_applies_is_not_raced() -> None:
    machine = Machine(a=3.0, b=1.0)
    applies = [True]
    pairs = [
        Alternative("a", machine.alternative("a"), supports=lambda n: applies[0]),
        ("b", machine.alternative("b")),
    ]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    calls(selector, 9)
    applies.clear()
    applies.append(False)
    machine.seconds["b"] = 9.0
    calls(selector, 2 * WINDOW)
    assert drifts(selector) == []
    assert selector.explain(1).decision == "b"


def test_a_policy_that_breaks_when_it_starts_again_costs_no_call() -> None:
    class Once:
        starts = 0

        def start(self, names: Any) -> Any:
            self.starts += 1
            if self.starts > 2:  # the first is the one of the constructor
                raise RuntimeError("used up")
            return Race().start(names)

    machine = Machine(a=3.0, b=1.0)
    selector = machine.selector(policy=Once())
    calls(selector, 20)
    machine.seconds["b"] = 9.0
    with pytest.warns(
        BestofWarning, match="its drift is no longer watched: RuntimeError: used up"
    ) as caught:
        calls(selector, 4 * WINDOW)
    assert len(caught) == 1
    assert selector.explain(1).decision == "b"


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
            assert leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
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


def test_these_tests_ran_on_the_hot_path_that_was_asked_for() -> None:
    pure = bool(os.environ.get("BESTOF_PURE_PYTHON")) or NativeHotPath is None
    assert HotPath is (PythonHotPath if pure else NativeHotPath)


@pytest.mark.skipif(
    bool(os.environ.get("BESTOF_PURE_PYTHON")), reason="this is the run in plain Python"
)
def test_all_of_this_in_plain_python() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "BESTOF_PURE_PYTHON": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout[-4000:]
