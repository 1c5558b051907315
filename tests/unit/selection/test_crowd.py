"""Trials in which threads waited for a processor do not count, and the next ones wait."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_program import Program

from bestof import BestOf
from bestof.selection.policies import Race, Window
from bestof.selection.state import registry
from bestof.selection.state.budget import Budget, lifted
from bestof.selection.trials.crowd import Crowd, Waits
from bestof.thread_times import thread_times

TIMES = {"first": 0.05, "slow": 0.1, "fast": 0.03}
BILLION = 1_000_000_000


class Machine:
    """A program beside neighbours: `late` says how long a call waits that begins at some time."""

    def __init__(self, late: Callable[[float], float]) -> None:
        self.program, self.late, self.waited = Program(), late, 0.0

    def waits(self) -> Waits:
        return {"1": int(self.waited * BILLION), "2": 0}

    def function(self, name: str, seconds: float) -> Callable[..., str]:
        def called(*_args: object) -> str:
            wait = self.late(self.program.clock.now)
            self.waited += wait
            self.program.calls.append(name)
            self.program.clock.passes(seconds + wait)
            return name

        return called

    def selector(self, times: dict[str, float] = TIMES, **options: Any) -> BestOf:
        alternatives = [(name, self.function(name, seconds)) for name, seconds in times.items()]
        selector = BestOf(
            "it", alternatives, lambda n: n, clock=self.program.clock, **{"budget": 0.9} | options
        )
        self.watch(selector)
        return selector

    def watch(self, selector: BestOf) -> Budget:
        """Watch for neighbours, as a selector does that goes by the time of day."""
        account = selector._knowledge.budget
        account.is_on = True
        account.crowd = Crowd(self.program.clock, self.waits)
        return account

    def settle(self, selector: BestOf, most: int = 2000) -> int:
        """Call until the problem is decided; return the number of calls."""
        for calls in range(most):
            if selector.explain(1).decision is not None:
                return calls
            selector(1)
        raise AssertionError(f"undecided after {most} calls")


def in_bursts(now: float) -> float:
    return 0.04 if int(now) % 2 else 0.0


def samples_of(selector: BestOf) -> set[float]:
    (tuning,) = selector._knowledge.tunings.values()
    return {round(one, 6) for candidate in tuning.candidates for one in candidate.samples}


@pytest.mark.parametrize("check", [None, 0.0])
def test_a_trial_that_waited_does_not_count(check: float | None) -> None:
    """With a check, results are compared, and calls go another way."""
    machine = Machine(in_bursts)
    times = {"a": 0.05, "b": 0.045, "c": 0.06}
    selector = machine.selector(times, policy=Race(tie=0.03), check=None)
    if check is not None:
        answers = [(name, machine.function("same", seconds)) for name, seconds in times.items()]
        selector = BestOf(
            "it", answers, lambda n: n, clock=machine.program.clock, check=check, budget=0.9
        )
        machine.watch(selector)
    while selector.trials < 25:
        selector(1)
    assert samples_of(selector) <= set(times.values())


def test_without_a_watch_it_counts() -> None:
    machine = Machine(in_bursts)
    selector = machine.selector(policy="rounds:rounds=30", budget=None)
    while selector.trials < 40:
        selector(1)
    assert samples_of(selector) > set(TIMES.values())


def test_the_best_known_answers_during_the_pause() -> None:
    machine = Machine(lambda now: 0.04 if now > 0.5 else 0.0)
    selector = machine.selector({"a": 0.05, "b": 0.045})
    while machine.program.clock.now < 0.5:
        selector(1)
    trials = selector.trials
    selector(1)  # it waits
    assert selector.trials == trials + 1
    machine.program.taken()
    assert [selector(1) for _ in range(2)] == ["b", "b"]
    assert selector.trials == trials + 1
    assert selector._knowledge.budget.crowded > 0


def test_neighbours_that_never_rest_do_not_end_tuning() -> None:
    crowded, alone = Machine(lambda _now: 0.04), Machine(lambda _now: 0.0)
    calls = [one.settle(one.selector(policy=Race(tie=0.03))) for one in (alone, crowded)]
    assert calls[0] < calls[1]
    assert 10.0 < crowded.program.clock.now < 40.0


def test_beside_neighbours_that_never_rest_a_third_of_the_time_is_pauses() -> None:
    """Half of all other time is regained."""
    machine = Machine(lambda _now: 0.04)
    crowd = Crowd(machine.program.clock, machine.waits)
    paused = 0.0
    while machine.program.clock.now < 100.0:
        if crowd.is_here(0.05):
            paused += 0.01
            machine.program.clock.passes(0.01)
            continue
        before = crowd.begin(0.05)
        assert before is not None
        machine.function("one", 0.05)()
        crowd.end(before, 0.09)
    assert (100.0 - 10.0) / 3 - 2.0 <= paused - 10.0 <= (100.0 - 10.0) / 3 + 4.0


def test_what_neighbours_took_is_no_price() -> None:
    machine = Machine(lambda now: 4.0 if now > 0.5 else 0.0)
    selector = machine.selector({"a": 0.05, "b": 0.05})
    while machine.program.clock.now < 1.0:
        selector(1)
    assert selector._knowledge.budget.lost == pytest.approx(0.0)
    assert machine.waited == 4.0


def test_a_thread_that_began_in_a_trial_matters() -> None:
    found: list[Waits] = [{"1": 0}, {"1": 0, "2": BILLION // 2}]
    crowd = Crowd(lambda: 0.0, lambda: found.pop(0))
    before = crowd.begin(1.0)
    assert before is not None
    assert crowd.end(before, 1.0) == 0.5


def test_the_wait_is_never_longer_than_the_trial() -> None:
    """A thread may have waited before the trial; the system tells it when the wait is over."""
    found: list[Waits] = [{"1": 0}, {"1": 9 * BILLION}]
    crowd = Crowd(lambda: 0.0, lambda: found.pop(0))
    before = crowd.begin(1.0)
    assert before is not None
    assert crowd.end(before, 1.0) == 1.0


@pytest.mark.parametrize(("least", "watched"), [(90e-6, False), (110e-6, True), (1.0, True)])
def test_short_trials_are_not_watched(least: float, watched: bool) -> None:
    crowd = Crowd(lambda: 0.0, lambda: {"1": 0})
    assert (crowd.begin(least) is not None) == watched


def test_a_trial_is_watched_where_that_costs_little() -> None:
    """Two looks at 100 threads take a millisecond."""
    crowd = Crowd(lambda: 0.0, lambda: {str(one): 0 for one in range(100)})
    assert crowd.begin(0.009) is not None  # how many threads there are is not known before
    assert crowd.begin(0.009) is None
    assert crowd.begin(0.011) is not None


def test_a_short_wait_begins_no_pause() -> None:
    """It is the system's own work. Such trials do not count either, for a third of the time."""
    machine = Machine(lambda _now: 0.0004)
    crowd = Crowd(machine.program.clock, machine.waits)
    counted = 0.0
    while machine.program.clock.now < 100.0:
        before = crowd.begin(0.01)
        assert before is not None
        machine.function("one", 0.01)()
        counted += 0.0104 * (crowd.end(before, 0.0104) == 0.0)
        assert not crowd.is_here(0.01)
    assert 35.0 < counted < 45.0


def test_first_trials_are_not_watched() -> None:
    crowd = Crowd(lambda: 0.0, lambda: {"1": 0})
    assert crowd.begin(float("inf")) is None
    assert not crowd.is_here(float("inf"))


def test_ordered_tuning_a_window_and_ranks_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _now: 0.04)
    selector = machine.selector(policy=Race(tie=0.03, max_trials=4))
    with lifted():
        assert machine.settle(selector) <= 3 * 4
    window = Window(0, 1, Race(tie=0.03, max_trials=4))
    assert machine.settle(machine.selector(policy=window)) <= 3 * 4
    monkeypatch.setattr(registry, "ranks_agree", lambda: True)
    assert machine.settle(machine.selector(policy=Race(tie=0.03, max_trials=4))) <= 3 * 4


def test_a_pass_of_a_group_in_which_one_stage_waited_does_not_count() -> None:
    machine = Machine(in_bursts)
    groups: Any = [
        (name, [machine.function(name, seconds), machine.function(name, seconds)])
        for name, seconds in (("a", 0.05), ("b", 0.045))
    ]
    selector = BestOf("it", groups, lambda n: n, clock=machine.program.clock, budget=0.9)
    machine.watch(selector)
    while selector.trials < 24:
        selector(0, 1)
        selector(1, 1)
    assert samples_of(selector) <= {0.1, 0.09}


def test_the_process_has_a_watch_and_a_selector_with_a_clock_has_none(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.delenv("BESTOF_BUDGET")
    assert Budget().crowd is not None
    assert program.selector(TIMES)._knowledge.budget.crowd is None


def test_the_system_tells_how_long_threads_waited(tmp_path: Path) -> None:
    here = str(threading.get_native_id())
    if not Path(f"/proc/self/task/{here}/schedstat").exists():
        assert thread_times() == {}
        pytest.skip("this system does not tell it")
    assert thread_times()[here][1] >= 0
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("1 2 3\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "schedstat").write_text("1 2\n")  # of another system
    (tmp_path / "9").mkdir()
    assert thread_times(os.fspath(tmp_path)) == {"7": (1, 2)}
    assert thread_times(os.fspath(tmp_path / "none")) == {}


BESIDE_ONE = """
import os, subprocess, sys, time
from bestof.thread_times import thread_times
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    waits = lambda: max(waited for _, waited in thread_times().values())
    before, latest = waits(), time.monotonic() + 30.0
    while waits() < before + 20_000_000:
        assert time.monotonic() < latest
finally:
    busy.kill()
    busy.wait()
"""


@pytest.mark.skipif(not thread_times(), reason="this system does not tell how long they wait")
def test_a_thread_that_shares_its_processor_waits() -> None:
    subprocess.run([sys.executable, "-c", BESIDE_ONE], check=True)


def test_the_log_tells_why_a_trial_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bestof")
    machine = Machine(lambda now: 0.04 if now > 0.3 else 0.0)
    selector = machine.selector()
    while machine.program.clock.now < 0.6:
        selector(1)
    assert "took 70.0 ms; not counted: it waited for a processor for 40.0 ms" in caplog.text
