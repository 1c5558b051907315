"""The settings, the bound and the memory of `bestof scale --serve`, with fake instances."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.cores import Cores
from bestof.scale.instances import Turn
from bestof.scale.serving import ServingMeasurement, Setting, percentile
from bestof.scale.split import Split, splits
from bestof.scale.table import serving_lines, serving_records, start_lines

MIB = 2**20
SETTINGS = [
    replace(one, batch=batch) for batch in (1, 4) for one in splits(Cores(((0, 1),), 2), None)
]


class Machine:
    """Answers for all instances. A sample takes 10 ms, and two threads are 1.8 times as fast.

    Each call takes 2 ms more for every instance.
    """

    def __init__(self, **more: Any) -> None:
        self.now, self.open = 0.0, 0
        self.started: list[str] = []
        self.failing = more.get("failing", "")
        self.late = more.get("late", "")
        self.slow_every = more.get("slow_every", 0)
        self.scale = more.get("scale", 1.0)

    def seconds(self, split: Split) -> float:
        assert split.batch is not None
        return self.scale * (
            0.010 * split.batch / (0.8 * split.threads + 0.2) + 0.002 * len(split.ranks)
        )

    def make(self, split: Split, deadline: float) -> FakeInstances:
        self.started.append(f"{split.name} {split.batch}")
        self.now += 1.0
        if self.started[-1] == self.failing:
            raise ScriptFailed("its process ended with status -9")
        self.open += 1
        return FakeInstances(self, split)


class FakeInstances:
    def __init__(self, machine: Machine, split: Split) -> None:
        assert split.batch is not None
        self.machine, self.split = machine, split
        self.seconds = machine.seconds(split)
        self.base, self.memory = 100 * MIB, (100 + 50 * split.batch) * MIB

    def turn(self, seconds: float, deadline: float) -> Turn:
        if f"{self.split.name} {self.split.batch}" == self.machine.late:
            self.machine.now = deadline
            raise OutOfTime("the time is up")
        self.machine.now += seconds
        one = self.machine.seconds(self.split)
        count = max(1, round(len(self.split.ranks) * seconds / one))
        slow = self.machine.slow_every
        times = [10 * one if slow and number % slow == 0 else one for number in range(count)]
        return Turn(times, len(self.split.ranks) / one)

    def close(self) -> None:
        self.machine.open -= 1


def measured(
    machine: Machine, bound: float | None, free: int | None = None, seconds: float = 1e6
) -> ServingMeasurement:
    found = ServingMeasurement(
        machine.make,
        lambda: None if free is None else free * MIB,
        bound,
        deadline=seconds,
        tell=lambda line: None,
        clock=lambda: machine.now,
    )
    try:
        found.run(SETTINGS)
    finally:
        assert machine.open == 0
    return found


def named(found: ServingMeasurement) -> dict[str, Setting]:
    return {f"{row.split.name} {row.split.batch}": row for row in found.rows}


def best_of(found: ServingMeasurement) -> str:
    assert found.best is not None
    return f"{found.best.split.name} {found.best.split.batch}"


@pytest.mark.parametrize(
    ("bound", "best"),
    [
        (None, "2x1 4"),  # 8 samples in 44 ms
        (0.044001, "2x1 4"),
        (0.043, "1x2 4"),  # 4 samples in 24 ms
        (0.021, "2x1 1"),  # 2 samples in 14 ms
        (0.0077, "1x2 1"),  # 1 sample in 8 ms
    ],
)
def test_the_most_samples_within_the_bound_win(bound: float | None, best: str) -> None:
    found = measured(Machine(), bound)
    assert best_of(found) == best


def test_the_throughput_is_that_of_all_instances() -> None:
    rows = named(measured(Machine(), 0.05))
    assert rows["2x1 4"].throughput == pytest.approx(2 * 4 / 0.044)
    assert rows["1x2 1"].throughput == pytest.approx(1 / (0.010 / 1.8 + 0.002))
    assert rows["1x1 1"].p50 == rows["1x1 1"].p99 == pytest.approx(0.012)


def test_slow_calls_count_from_the_hundredth_on() -> None:
    assert percentile([1.0] * 99 + [9.0], 99) == 1.0
    assert percentile([1.0] * 98 + [9.0, 9.0], 99) == 9.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    found = measured(Machine(slow_every=50), 0.1)
    assert best_of(found) == "1x2 1"  # the only one whose slow calls of 76 ms keep the bound
    rows = named(found)
    assert rows["1x2 1"].p99 == pytest.approx(0.1 / 1.8 + 0.02)
    assert rows["1x2 4"].p99 == pytest.approx(0.4 / 1.8 + 0.02)


def test_a_bound_that_nothing_keeps_leaves_no_best_but_a_nearest() -> None:
    machine = Machine()
    found = measured(machine, 0.001)
    assert found.best is None
    nearest = found.nearest()
    assert nearest is not None
    assert nearest.split.name == "1x2"
    assert nearest.split.batch == 1
    # Two instances cannot be faster than one.
    assert "2x1 1" not in machine.started
    assert named(found)["2x1 1"].why == ("not tried: one instance alone already takes 12 ms a call")


def test_what_does_not_fit_is_never_started() -> None:
    machine = Machine()
    found = measured(machine, None, free=290)
    rows = named(found)
    assert "2x1 1" not in machine.started  # it needs 300 MiB
    assert rows["2x1 1"].why == "not tried: it needs about 300 MiB, and 290 MiB are free"
    assert not any(one.endswith(" 4") for one in machine.started)  # 300 MiB, told by batch 1
    assert rows["1x2 4"].why == "not tried: it needs about 300 MiB, and 290 MiB are free"
    assert rows["2x1 4"].why == "not tried: one instance of it was not measured"


def test_too_few_calls_are_told_with_their_number() -> None:
    with pytest.raises(ScriptFailed, match="too few calls for a 99th percentile: 13 in 2 s, and 1"):
        measured(Machine(scale=20.0), None, seconds=60.0)


class SlowStart(Machine):
    """Processes that import for some seconds before they answer."""

    def __init__(self, start: float, **more: Any) -> None:
        super().__init__(**more)
        self.start = start

    def make(self, split: Split, deadline: float) -> FakeInstances:
        if self.now + self.start > deadline:
            self.now = deadline
            raise OutOfTime("the time is up")
        self.now += self.start - 1.0  # one second is in `make`
        return super().make(split, deadline)


def advised(found: ServingMeasurement) -> int:
    numbers = [re.search(r"pass --seconds (\d+) or more", row.why) for row in found.rows]
    return max(int(one[1]) for one in numbers if one)


@pytest.mark.parametrize("start", [3.0, 6.0])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_the_time_that_is_named_suffices(start: float, scale: float) -> None:
    short = measured(SlowStart(start, scale=scale), None, seconds=10.0 * scale)
    enough = advised(short)
    assert all(
        row.calls for row in measured(SlowStart(start, scale=scale), None, None, enough).rows
    )
    # The estimate takes calls of one thread for twice as long as those of two.
    tight = measured(SlowStart(start, scale=scale), None, None, enough / 3)
    assert not all(row.calls for row in tight.rows)


def test_the_first_start_may_take_longer_than_its_share() -> None:
    found = measured(SlowStart(6.0, scale=0.1), None, seconds=10.0)
    assert [bool(row.calls) for row in found.rows] == [True] + 5 * [False]
    # 6 settings of 6 s to start and 2.5 s to measure, and a quarter more
    expected = "not measured: its share of the time was up; pass --seconds 64 or more"
    assert found.rows[1].why == expected


def test_a_start_that_does_not_end_gives_a_lower_bound() -> None:
    expected = r"nothing has started in 10 s; pass more than --seconds 94"
    with pytest.raises(ScriptFailed, match=expected):
        measured(SlowStart(1e9), None, seconds=10.0)


def test_no_smaller_time_than_the_given_one_is_advised() -> None:
    rows = named(measured(Machine(late="1x2 4"), None, seconds=1000.0))
    expected = "not measured: its share of the time was up; pass a larger --seconds"
    assert rows["1x2 4"].why == expected


def test_slow_calls_are_measured_for_longer() -> None:
    rows = named(measured(Machine(scale=20.0), None))
    assert rows["1x1 4"].calls >= 100


def test_instances_that_die_or_hang_cost_one_row() -> None:
    found = measured(Machine(failing="2x1 4", late="1x2 4"), None, seconds=1000.0)
    rows = named(found)
    assert rows["2x1 4"].why == "its process ended with status -9"
    assert rows["1x2 4"].why.startswith("not measured: its share of the time was up")
    assert best_of(found) == "2x1 1"


def test_a_plan_that_always_fails_is_an_error() -> None:
    class Broken(Machine):
        def make(self, split: Split, deadline: float) -> FakeInstances:
            raise ScriptFailed("TorchError: no such operator")

    with pytest.raises(ScriptFailed, match="TorchError: no such operator"):
        measured(Broken(), None)


def test_close_settings_are_compared_in_turn() -> None:
    class Drifting(Machine):
        def seconds(self, split: Split) -> float:
            quiet = self.now > 17  # all have been measured alone
            if (split.name, split.batch) == ("2x1", 1):
                return 0.0100 if quiet else 0.0202
            return {"1x2": 0.0100}.get(split.name, 0.5) * (split.batch or 1)

    found = measured(Drifting(), None)
    assert best_of(found) == "2x1 1"


def test_the_table_and_the_lines_that_start_a_server() -> None:
    found = measured(Machine(), 0.021, free=700)
    lines = serving_lines(serving_records(found.rows, 0.021))
    assert lines[0].split()[:4] == ["instances", "threads", "batch", "samples/s"]
    expected = ["2", "1", "1", "142.9", "14", "14", "within", "150", "0/1"]
    assert [line.split() for line in lines][3] == expected
    assert "beyond" in lines[4].split()
    assert found.best is not None
    assert start_lines(found.best.split) == [
        "OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 taskset --cpu-list 0 python SERVER",
        "OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 taskset --cpu-list 1 python SERVER",
    ]
