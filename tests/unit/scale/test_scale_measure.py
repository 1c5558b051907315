"""The order of measurements, the memory and the table, with runs that are fakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from bestof.recipe.contestant import OutOfTime, ScriptFailed, descendants, last_words
from bestof.scale.cores import Cores
from bestof.scale.measure import Measurement
from bestof.scale.split import Split, splits
from bestof.scale.table import lines, records

MIB = 2**20
TWO = splits(Cores(((0, 1),), 2), 64)


class Machine:
    """Answers for all runs. A step takes 1 ms for each sample of a thread, and 8 ms a rank more."""

    def __init__(self, **more: Any) -> None:
        self.now, self.started, self.open = 0.0, [], 0  # type: ignore[var-annotated]
        self.world: int | None = None
        self.exchanges: int | None = 3
        self.failing = more.get("failing", "")
        self.late = more.get("late", "")

    def seconds(self, split: Split) -> float:
        assert split.batch is not None
        return 0.001 * split.batch / split.threads + 0.008 * (len(split.ranks) - 1)

    def make(self, split: Split) -> FakeRun:
        self.started.append(split.name)
        self.open += 1
        return FakeRun(self, split)


class FakeRun:
    def __init__(self, machine: Machine, split: Split) -> None:
        self.machine, self.split = machine, split
        self.report: dict[str, Any] = {}

    def turn(self, deadline: float) -> float:
        self.machine.now += 1.0
        if self.split.name == self.machine.failing:
            raise ScriptFailed("it failed with status 7: rank 1 has died")
        if self.split.name == self.machine.late:
            self.machine.now = deadline
            raise OutOfTime("the time is up")
        batch = self.split.batch
        assert batch is not None
        world = self.machine.world or len(self.split.ranks)
        self.report = {
            "world": world,
            "exchanges": self.machine.exchanges,
            "memory": (100 + 2 * batch) * MIB,
            "base": 100 * MIB,
        }
        return self.machine.seconds(self.split)

    def close(self) -> None:
        self.machine.open -= 1


def measured(machine: Machine, free: int | None = None, seconds: float = 1e6) -> Measurement:
    found = Measurement(
        machine.make,
        lambda: None if free is None else free * MIB,
        deadline=seconds,
        tell=lambda line: None,
        clock=lambda: machine.now,
    )
    try:
        found.run(TWO)
    finally:
        assert machine.open == 0
    return found


def test_the_fastest_split_wins_and_the_efficiencies_are_those_of_its_times() -> None:
    found = measured(Machine())
    assert found.best is not None
    assert found.best.split.name == "1x2"
    table = {(one["ranks"], one["threads"]): one for one in records(found.rows)}
    assert table[1, 1]["seconds"] == pytest.approx(0.064)
    assert table[2, 1]["seconds"] == pytest.approx(0.040)
    assert table[2, 1]["strong"] == pytest.approx(0.064 / (2 * 0.040))
    assert table[2, 1]["weak"] == pytest.approx(0.032 / 0.040)
    assert table[1, 2]["strong"] == table[1, 2]["weak"] == pytest.approx(1.0)
    assert table[2, 1]["memory"] == 164 * MIB
    shown = lines(records(found.rows))
    assert shown[3].split() == ["2", "1", "32", "0.0400", "80%", "80%", "164", "0/1"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0003572, "0.000357"), (0.04, "0.0400"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1234")],
)
def test_a_time_has_three_digits_however_short_it_is(seconds: float, told: str) -> None:
    row = {**records(measured(Machine()).rows)[0], "seconds": seconds}
    assert lines([row])[1].split()[3] == told


def test_what_does_not_fit_is_never_started() -> None:
    machine = Machine()
    found = measured(machine, free=300)  # two ranks need 328 MiB, one of all samples 228 MiB
    assert "2x1" not in machine.started
    (refused,) = [row for row in found.rows if row.seconds is None]
    assert refused.why == "not tried: it needs about 328 MiB, and 300 MiB are free"
    machine = Machine()
    with pytest.raises(ScriptFailed, match="not tried: it needs about 328 MiB"):
        measured(machine, free=200)
    assert machine.started == ["1x1"]  # that of 32 samples; 64 would need 228 MiB


def test_a_script_that_always_fails_is_run_twice() -> None:
    class Failing(FakeRun):
        def turn(self, deadline: float) -> float:
            raise ScriptFailed(f"it failed with status 1: no file for {self.split.batch} samples")

    class Broken(Machine):
        def make(self, split: Split) -> FakeRun:
            super().make(split)
            return Failing(self, split)

    machine = Broken()
    found = Measurement(
        machine.make,
        lambda: None,
        deadline=1e6,
        tell=lambda line: None,
        clock=lambda: machine.now,
    )
    with pytest.raises(ScriptFailed, match="status 1: no file for 16 samples"):
        found.run(splits(Cores(((0, 1, 2, 3),), 4), 64))
    assert len(machine.started) == 2
    assert machine.open == 0


@pytest.mark.parametrize(("alike", "started"), [(True, 2), (False, 3)])
def test_a_script_that_fails_with_several_ranks_is_run_twice(alike: bool, started: int) -> None:
    class Failing(FakeRun):
        def turn(self, deadline: float) -> float:
            if len(self.split.ranks) > 1:
                why = "no port 1234" if alike else "x" * len(machine.started)
                raise ScriptFailed(f"it failed with status 1: {why}")
            return super().turn(deadline)

    class Broken(Machine):
        def make(self, split: Split) -> FakeRun:
            super().make(split)
            return Failing(self, split)

    machine = Broken()
    found = Measurement(
        machine.make, lambda: None, deadline=1e6, tell=lambda line: None, clock=lambda: machine.now
    )
    found.run(splits(Cores(((0, 1, 2, 3),), 4), 64))
    several = [one for one in machine.started if not one.startswith("1x")]
    assert len(several) == started  # of 2x1, 2x2 and 4x1
    assert found.best is not None
    assert len(found.best.split.ranks) == 1
    refused = [row.why for row in found.rows if row.why.startswith("not tried")]
    assert len(refused) == 3 - len(several)
    assert all("failed alike: it failed with status 1: no port 1234" in one for one in refused)


def test_one_rank_that_dies_costs_one_row() -> None:
    found = measured(Machine(failing="2x1"))
    assert {row.split.name: row.why for row in found.rows if row.seconds is None} == {
        "2x1": "it failed with status 7: rank 1 has died"
    }
    assert "rank 1 has died" in lines(records(found.rows))[3]


def test_a_split_that_hangs_leaves_time_for_the_others() -> None:
    found = measured(Machine(late="2x1"), seconds=1000.0)
    assert found.best is not None
    (late,) = [row for row in found.rows if row.seconds is None]
    assert late.split.name == "2x1"
    assert late.why == "not measured: its share of the time was up; pass a larger --seconds"


def test_ranks_that_do_not_train_together_are_refused() -> None:
    machine = Machine()
    machine.world = 1
    found = measured(machine)
    (refused,) = [row for row in found.rows if row.seconds is None]
    assert "the script does not use its 2 ranks together" in refused.why


def test_ranks_that_exchange_nothing_are_refused() -> None:
    machine = Machine()
    machine.exchanges = 0
    found = measured(machine)
    (refused,) = [row for row in found.rows if row.seconds is None]
    assert refused.split.name == "2x1"  # one rank needs no others
    assert "its 2 ranks exchange nothing in their steps" in refused.why


def test_a_backend_that_counts_nothing_is_trusted() -> None:
    machine = Machine()
    machine.exchanges = None
    assert all(row.seconds for row in measured(machine).rows)


def test_close_splits_are_compared_in_turn() -> None:
    machine = Machine()
    late: list[str] = []

    def seconds(split: Split) -> float:
        # Alone, two ranks look slower by 3 %. In turn, when the machine is quiet, they win.
        quiet = machine.now > 12
        late.extend([split.name] if quiet else [])
        return {"2x1": 0.8 if quiet else 1.03, "1x2": 1.0}.get(split.name, 3.0)

    machine.seconds = seconds  # type: ignore[method-assign]
    found = measured(machine)
    assert late.count("2x1") == late.count("1x2") >= 6
    assert found.best is not None
    assert found.best.split.name == "2x1"


def test_the_pages_of_the_launcher_do_not_hide_the_script() -> None:
    own = "Traceback\nValueError: wrong number\n"
    warned = "W1123 1 torch/distributed/elastic/multiprocessing/api.py:1] closing signal SIGTERM\n"
    failed = "E1123 1 torch/distributed/elastic/multiprocessing/api.py:8] failed (exitcode: 1)\n"
    assert last_words(own + warned + failed + "root cause\n" * 9) == "Traceback | " + (
        "ValueError: wrong number"
    )
    assert last_words("alone") == "alone"
    assert last_words(failed) == failed.strip()


def test_descendants_have_sessions_of_their_own_too() -> None:
    assert descendants(2**30) == []
    inner = "import subprocess as s; p = s.Popen(['sleep', '60'], start_new_session=True); "
    program = [sys.executable, "-c", inner + "print(p.pid, flush=True); p.wait()"]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert descendants(child.pid) == [grandchild]
        assert {child.pid, grandchild} <= set(descendants(os.getpid()))
        os.kill(grandchild, signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
