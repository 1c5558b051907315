"""The alternative that begins a pass answers all its stages, whatever is decided meanwhile.

The last test runs all others in plain Python too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from bestof import BestOf
from bestof.selection.hot_path import HotPath, NativeHotPath, PythonHotPath
from bestof.selection.passes import PASSES_KEPT
from bestof.selection.state.journal import DriftEntry
from bestof.selection.trials.trial import detours


class Machine:
    """A clock, alternatives whose seconds can be changed, and threads that call when they are told
    to."""

    def __init__(self, threads: int, stages: int = 2, **seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.fails = False  # whatever is called
        self._closing = ExitStack()
        self.threads = [self._closing.enter_context(ThreadPoolExecutor(1)) for _ in range(threads)]
        pairs = [(name, [self._stage(name, stage) for stage in range(stages)]) for name in seconds]
        self.selector = BestOf(
            "passes",
            pairs,
            lambda x: x,
            policy="rounds:rounds=2",
            clock=lambda: self.now,
            store="off",
        )

    def _stage(self, name: str, stage: int) -> Callable[[int], str]:
        def called(x: int) -> str:
            self.now += self.seconds[name]
            if self.fails:
                raise ValueError("bad data")
            return f"{name}{stage}"

        return called

    def call(self, thread: int, stage: int) -> str:
        """What a call of one stage in one thread gives."""
        return str(self.threads[thread].submit(self.selector, stage, 1).result())

    def step(self, thread: int = 0) -> list[str]:
        """A whole pass in one thread."""
        return [self.call(thread, 0), self.call(thread, 1)]

    def settle(self, thread: int = 0) -> str:
        """Passes until there is a decision, and the hot path is open."""
        while 1 not in self.selector._settled:
            self.step(thread)
        return str(self.selector.explain(1).decision)

    def reopen(self, thread: int = 0, **seconds: float) -> None:
        """The winner slows; whole passes until its race is run again."""
        self.seconds.update(seconds)
        while self.selector.explain(1).settled:
            assert self.step(thread) in (["a0", "a1"], ["b0", "b1"])

    def close(self) -> None:
        """End the threads."""
        self._closing.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def machine(threads: int = 2, stages: int = 2, **seconds: float) -> Machine:
        made.append(Machine(threads, stages, **(seconds or {"a": 3.0, "b": 1.0})))
        return made[-1]

    yield machine
    for one in made:
        one.close()


Make = Callable[..., Machine]


def test_a_thread_that_is_held_up_for_a_whole_race_finishes_its_own_pass(make: Make) -> None:
    machine = make()
    assert machine.settle() == "b"
    assert machine.call(1, 0) == "b0"
    machine.reopen(b=9.0)
    assert machine.settle() == "a"
    for _ in range(3):
        assert machine.step() == ["a0", "a1"]
    assert machine.call(1, 1) == "b1"
    assert machine.step(1) == ["a0", "a1"]
    assert machine.selector._settled[1].earlier is None


def test_a_thread_that_is_held_up_for_several_races_finishes_all_its_passes(make: Make) -> None:
    machine = make()
    machine.settle()
    begun = [machine.call(1, 0)]
    for seconds in ({"b": 9.0}, {"a": 30.0}, {"b": 90.0}):
        machine.reopen(**seconds)
        machine.settle()
        begun.append(machine.call(1, 0))
    assert begun == ["b0", "a0", "b0", "a0"]
    assert [machine.call(1, 1) for _ in begun] == ["a1", "b1", "a1", "b1"]


def test_a_thread_that_is_held_up_in_a_trial_finishes_it_after_the_decision(make: Make) -> None:
    machine = make()
    assert machine.call(1, 0) == "a0"
    assert machine.settle() == "b"
    assert machine.step() == ["b0", "b1"]
    assert machine.call(1, 1) == "a1"


def test_no_thread_takes_the_pass_of_a_delayed_thread_in_a_reopened_race(make: Make) -> None:
    machine = make(threads=3)
    machine.settle()
    assert machine.call(1, 0) == "b0"
    machine.reopen(b=9.0)
    assert machine.call(2, 0) == "b0"
    assert machine.call(1, 1) == "b1"  # of its own pass, begun before
    machine.settle()
    trials = machine.selector.trials
    assert machine.call(2, 1) == "b1"
    assert machine.selector.trials == trials


def test_passes_finished_by_another_thread_do_not_fill_memory(
    make: Make,
) -> None:
    machine = make(threads=3)
    for _ in range(3):  # begun, and never finished, by the one that will not win
        machine.call(2, 0)
    machine.settle()
    for _ in range(PASSES_KEPT + 10):
        assert (machine.call(0, 0), machine.call(1, 1)) == ("b0", "b1")


def test_a_first_stage_that_raises_begins_no_pass(make: Make) -> None:
    machine = make(threads=1)
    assert machine.call(0, 0) == "a0"  # its last stage comes after all that follows
    machine.settle()
    machine.step()
    machine.fails = True
    for _ in range(2):
        with pytest.raises(ValueError, match="bad data"):
            machine.call(0, 0)
    detours.append(machine)  # as while any other selector has a trial: the long way
    try:
        with pytest.raises(ValueError, match="bad data"):
            machine.call(0, 0)
    finally:
        detours.remove(machine)
    machine.fails = False
    assert machine.call(0, 1) == "a1"


def test_a_thread_that_finishes_the_passes_of_another_finds_them(make: Make) -> None:
    machine = make()
    for number in range(400):
        begun = machine.call(0, 0)
        assert machine.call(1, 1) == begun.replace("0", "1")
        if number == 100:
            machine.seconds["b"] = 9.0
    assert machine.selector.explain(1).decision == "a"
    assert sum(isinstance(entry, DriftEntry) for entry in machine.selector.journal.entries()) == 1


def test_two_threads_never_answer_the_same_stage_of_one_pass(make: Make) -> None:
    machine = make(threads=3)
    assert [machine.call(0, 0), machine.call(0, 0)] == ["a0", "a0"]
    machine.step()
    assert machine.call(0, 0) == "b0"
    inside: list[str] = []
    function = machine.selector._knowledge.tunings[1].candidates[1].stages[1]

    def meanwhile(x: int) -> Any:
        if not inside:
            inside.append(machine.call(2, 1))
        return function(x)

    machine.selector._knowledge.tunings[1].candidates[1].stages[1] = meanwhile
    assert machine.call(1, 1) == "b1"
    assert inside == ["a1"]


def test_abandoned_passes_are_forgotten_once_their_thread_has_begun_as_many_as_are_kept(
    make: Make,
) -> None:
    machine = make()
    selector = machine.selector
    assert selector(0, 1) == "a0"
    while 1 not in selector._settled:
        selector(0, 1)
        selector(1, 1)
    assert selector._settled[1].earlier is not None
    for _ in range(PASSES_KEPT + 1):
        assert [selector(0, 1), selector(1, 1)] == ["b0", "b1"]
    assert selector._settled[1].earlier is None


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_passes_of_many_threads_inside_each_other_through_many_races(
    seed: int, stages: int, make: Make
) -> None:
    """Each thread begins passes and finishes its youngest, in any order of the threads, while times
    change."""
    machine = make(threads=6, stages=stages, a=3.0, b=1.0, c=2.0)
    chance = random.Random(seed)
    begun: list[list[tuple[str, int]]] = [
        [] for _ in machine.threads
    ]  # who answered, and the stage to come
    for number in range(5000):
        if number % 200 == 0:
            costs = [1.0, 3.0, 9.0]
            chance.shuffle(costs)
            machine.seconds = dict(zip("abc", costs, strict=True))
        thread = min(
            int(chance.expovariate(0.5)), len(machine.threads) - 1
        )  # the last seldom has its turn
        mine = begun[thread]
        if not mine or (len(mine) < 4 and chance.random() < 0.4):
            mine.append((machine.call(thread, 0)[0], 1))
        else:
            name, stage = mine.pop()
            assert machine.call(thread, stage) == f"{name}{stage}"
            if stage + 1 < stages:
                mine.append((name, stage + 1))
    assert sum(isinstance(entry, DriftEntry) for entry in machine.selector.journal.entries()) >= 3


def test_these_tests_ran_on_the_hot_path_that_was_asked_for() -> None:
    asked = os.environ.get("BESTOF_PURE_PYTHON")
    assert (HotPath is PythonHotPath) == (asked is not None or NativeHotPath is None)


@pytest.mark.long
@pytest.mark.timeout(1100)
@pytest.mark.skipif(
    "BESTOF_PURE_PYTHON" in os.environ or NativeHotPath is None, reason="is plain Python already"
)
def test_all_of_this_in_plain_python() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "BESTOF_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
