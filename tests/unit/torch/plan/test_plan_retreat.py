"""Plans use fewer threads at once where calls lose time to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.torch.plan.run import program as program_module
from bestof.torch.plan.run import retreat as retreat_module
from bestof.torch.plan.run import team_size
from bestof.torch.plan.run.retreat import (
    DEAF,
    DEAFEST,
    LONG_STEP,
    LONGEST,
    LOST,
    OLD,
    SHORTEST,
    SOON,
    TOGETHER,
    WINDOW,
    Retreat,
)
from bestof.torch.plan.run.team_size import (
    BLOCK,
    MANY_STEPS,
    PAUSE,
    SELDOM,
    TeamSize,
    run_on_all,
    run_on_team,
)

STEPS = 50
LOSS = 0.6 * TOGETHER
PAIR = 1.01 * 2**0.5 * WINDOW + 0.005  # seconds until a reading on two processors, at most


@dataclass
class Machine:
    """Processors that busy processes share with one that calls a plan.

    now, idle, own: the system's counters. busy: processes beside it. tells: whether the system
    tells for how long processors are idle.
    """

    count: int = 2
    busy: float = 0.0
    now: float = 100.0
    idle: float = 1000.0
    own: float = 50.0
    tells: bool = True
    seen: list[int] = field(default_factory=list)

    def pass_time(self, seconds: float, threads: float) -> None:
        """Let the process compute on so many threads. All that compute get the same share."""
        share = min(1.0, self.count / max(0.1, threads + self.busy))
        self.now += seconds
        self.own += seconds * threads * share
        self.idle += seconds * (self.count - (threads + self.busy) * share)

    def call(self, retreat: Retreat, seconds: float = 0.004, rest: float = 0.0) -> int:
        """Call once on as many threads as the retreat says. rest: seconds before it."""
        self.pass_time(rest, 0)
        threads = retreat.threads(self.count)
        self.pass_time(seconds, threads)
        if retreat.is_open:
            retreat.tell(self.count, seconds, STEPS)
        self.seen.append(threads)
        return threads

    def lose_twice(self, retreat: Retreat) -> None:
        """Lose as much time in two calls as neighbours take."""
        for _ in range(2):
            retreat.note_loss(self.count, LOSS)

    def run(self, retreat: Retreat, seconds: float, rest: float = 0.0) -> list[int]:
        """Call for so many seconds. Calls on all threads lose time to neighbours."""
        end, self.seen = self.now + seconds, []
        while self.now < end:
            if self.call(retreat, rest=rest) == self.count and self.busy:
                retreat.note_loss(self.count, LOSS)
        return self.seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(retreat_module, "perf_counter", lambda: made.now)
    monkeypatch.setattr(retreat_module, "process_time", lambda: made.own)
    monkeypatch.setattr(
        retreat_module, "idle_seconds", lambda _processors: made.idle if made.tells else None
    )
    monkeypatch.setattr(
        retreat_module, "processors", lambda: SimpleNamespace(allowed=set(range(made.count)))
    )
    return made


def test_two_calls_that_lose_time_begin_a_retreat(machine: Machine) -> None:
    machine.busy, retreat = 1.0, Retreat()
    retreat.note_loss(2, LOSS)
    assert not retreat.is_open
    assert machine.call(retreat) == 2
    retreat.note_loss(2, LOSS)
    assert retreat.is_open
    seen = machine.run(retreat, 60.0)
    assert 0 < seen.count(2) < 0.002 * len(seen)  # all are tried now and then


def test_losses_far_apart_or_small_begin_none(machine: Machine) -> None:
    retreat = Retreat()
    for _ in range(100):
        machine.pass_time(1.1 * SOON, 2)
        retreat.note_loss(2, 0.1)  # far apart
    assert not retreat.is_open
    machine.pass_time(2 * SOON, 2)
    for _ in range(3):
        machine.pass_time(0.3 * SOON, 2)
        retreat.note_loss(2, LOST)
    assert not retreat.is_open


def test_one_thread_cannot_retreat(machine: Machine) -> None:
    retreat = Retreat()
    for _ in range(5):
        retreat.note_loss(1, 1.0)
    assert not retreat.is_open


def test_all_threads_are_used_again_once_the_neighbours_have_gone(machine: Machine) -> None:
    machine.busy, retreat = 1.0, Retreat()
    machine.lose_twice(retreat)
    machine.run(retreat, 5.0)
    assert retreat.is_open
    machine.busy = 0.0
    machine.run(retreat, 2 * PAIR)
    assert not retreat.is_open
    machine.lose_twice(retreat)  # neighbours may come back at once
    assert retreat.is_open


@pytest.mark.parametrize(
    ("count", "busy", "threads"),
    [(2, 1, 1), (2, 3, 1), (16, 1, 15), (16, 5, 12), (16, 12, 9), (16, 24, 6), (16, 40, 4)],
)
def test_threads_keep_their_share_of_the_processors(
    machine: Machine, count: int, busy: int, threads: int
) -> None:
    """Fewer threads let neighbours take more. They must not become fewer for that."""
    machine.count, machine.busy, retreat = count, busy, Retreat()
    machine.lose_twice(retreat)
    assert machine.call(retreat) == count - 1
    machine.run(retreat, 1.0)
    assert set(machine.run(retreat, 0.9)) == {threads}


def test_neighbours_that_leave_a_processor_free_are_none(machine: Machine) -> None:
    machine.count, machine.busy, retreat = 16, 5, Retreat()
    retreat.note_loss(8, LOSS)
    retreat.note_loss(8, LOSS)
    while machine.now < 101.0 and retreat.is_open:
        machine.pass_time(0.004, 7)
        retreat.tell(8, 0.004, STEPS)
    assert not retreat.is_open


def test_a_false_alarm_is_short_and_the_next_one_comes_later(machine: Machine) -> None:
    retreat, deaf = Retreat(), DEAF
    for _ in range(6):
        machine.lose_twice(retreat)
        assert retreat.is_open
        machine.run(retreat, PAIR)
        assert not retreat.is_open
        machine.pass_time(0.9 * deaf, 2)
        machine.lose_twice(retreat)
        assert not retreat.is_open
        machine.pass_time(0.2 * deaf, 2)
        deaf = min(DEAFEST, 2 * deaf)
    # After neighbours that were there, the next alarm counts at once.
    machine.busy = 1.0
    machine.lose_twice(retreat)
    machine.run(retreat, 1.5)
    machine.busy = 0.0
    machine.run(retreat, 2 * PAIR)
    machine.lose_twice(retreat)
    assert retreat.is_open


def test_all_threads_are_tried_less_and_less_often_beside_neighbours(machine: Machine) -> None:
    machine.busy, retreat, tried = 1.0, Retreat(), list[float]()
    machine.lose_twice(retreat)
    while machine.now < 200.0:
        if machine.call(retreat) == 2:
            tried.append(machine.now)
            machine.lose_twice(retreat)
    lengths = [after - before for before, after in zip([100.0, *tried], tried, strict=False)]
    expected = [SHORTEST * 2**i for i in range(3)]
    assert lengths[:3] == pytest.approx(expected, abs=2 * PAIR)
    assert lengths[3:] == pytest.approx([LONGEST] * len(lengths[3:]), abs=2 * PAIR)


def test_a_process_in_turn_with_this_one_does_not_hold_a_retreat(machine: Machine) -> None:
    """It computes between the calls. The system does not tell that from a neighbour."""
    retreat = Retreat()
    machine.lose_twice(retreat)
    end, seen = machine.now + 20.0, []
    while machine.now < end:
        machine.busy = 1.0
        machine.pass_time(0.003, 0)
        machine.busy = 0.0
        seen.append(machine.call(retreat))
    assert set(seen[len(seen) // 3 :]) == {2}


def test_a_system_that_does_not_tell_ends_a_retreat(machine: Machine) -> None:
    machine.busy, machine.tells, retreat = 1.0, False, Retreat()
    machine.lose_twice(retreat)
    machine.run(retreat, PAIR)
    assert not retreat.is_open


def test_long_steps_use_all_threads(machine: Machine) -> None:
    machine.busy, retreat = 1.0, Retreat()
    machine.lose_twice(retreat)
    for _ in range(3):
        machine.call(retreat, seconds=1.1 * LONG_STEP * STEPS)
    assert not retreat.is_open


def test_one_slow_call_does_not_make_steps_long(machine: Machine) -> None:
    machine.busy, retreat = 1.0, Retreat()
    machine.lose_twice(retreat)
    machine.run(retreat, 0.5 * PAIR)
    machine.call(retreat, seconds=2.0 * LONG_STEP * STEPS)
    assert retreat.is_open


def test_a_server_that_rests_sees_that_the_neighbours_have_gone(machine: Machine) -> None:
    retreat = Retreat()
    machine.lose_twice(retreat)
    machine.run(retreat, 1.0, rest=0.1)
    assert not retreat.is_open


def test_more_threads_than_processors_are_no_reason_to_stay(machine: Machine) -> None:
    retreat = Retreat()
    for _ in range(2):
        retreat.note_loss(8, LOSS)
    assert retreat.threads(8) == 7
    while machine.now < 100.0 + PAIR and retreat.is_open:
        machine.pass_time(0.004, 7)
        retreat.tell(8, 0.004, STEPS)
    assert not retreat.is_open


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A watch that sees no neighbours, and PyTorch on two threads."""
    watch, before = SimpleNamespace(watches=True, waited=0.0), torch.get_num_threads()
    monkeypatch.setattr(team_size, "NEIGHBOURS", watch)
    monkeypatch.setattr(program_module, "NEIGHBOURS", watch)
    torch.set_num_threads(2)
    yield watch
    torch.set_num_threads(before)


def test_a_call_whose_thread_did_not_run_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, two_threads: SimpleNamespace
) -> None:
    size, ran = TeamSize(), [0.0]
    monkeypatch.setattr(team_size, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(team_size, "thread_time", lambda: ran[0])

    def step(computes: float, waits: float) -> None:
        machine.pass_time(computes + waits, 1)
        ran[0] += computes

    for _ in range(5):
        run_on_all(size, [lambda: step(0.02, 0.5 * LOST)])
    assert not size.is_open
    for _ in range(2):
        run_on_all(size, [lambda: step(0.002, LOSS)])
    assert size.is_open
    seen: list[int] = []
    run_on_team(size, [lambda: seen.append(torch.get_num_threads())], STEPS)
    assert seen == [1]
    assert torch.get_num_threads() == 2
    # The watch may have told of neighbours before calls did, and a trial may go on.
    two_threads.waited = 0.3
    size = TeamSize()
    size.ended = machine.now
    while size.ask(2, 0.3) == 1:
        size.tell(1, BLOCK)
    for _ in range(2):
        run_on_team(size, [lambda: step(0.002, LOSS)], STEPS)
    assert size._retreat.is_open
    # What the watch tells is older than the end of a retreat: no trial begins at once.
    while size.is_open:
        assert size.ask(2, 0.3) == 1
        machine.pass_time(0.01, 1)
        size.tell(1, 0.01, STEPS)
    assert size.ask(2, 0.3) == 2
    size.tell(2, 1.1 * SELDOM * BLOCK)
    assert size.ask(2, 0.3) == 1


def test_what_was_before_a_pause_does_not_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, two_threads: SimpleNamespace
) -> None:
    size, ran, seen = TeamSize(), [0.0], list[int]()
    monkeypatch.setattr(team_size, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(team_size, "thread_time", lambda: ran[0])

    def step(waits: float) -> None:
        seen.append(torch.get_num_threads())
        machine.pass_time(0.002 + waits, 1)
        ran[0] += 0.002

    for _ in range(20):  # threads that wake let each call wait
        machine.pass_time(2 * PAUSE, 0)
        run_on_all(size, [lambda: step(LOSS)])
    assert not size.is_open
    for _ in range(3):
        run_on_all(size, [lambda: step(LOSS)])
    assert size.is_open
    machine.busy = 1.0
    seen.clear()
    machine.pass_time(0.9 * OLD, 0)
    run_on_team(size, [lambda: step(0.0)], STEPS)
    machine.pass_time(1.1 * OLD, 0)
    run_on_team(size, [lambda: step(0.0)], STEPS)
    assert seen == [1, 2]
    assert not size.is_open
    for _ in range(2):
        run_on_all(size, [lambda: step(LOSS)])
    assert size.is_open


def test_calls_of_few_steps_are_not_asked(
    monkeypatch: pytest.MonkeyPatch, two_threads: SimpleNamespace
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(program_module, "run_on_all", lambda _size, runs: asked.append(runs))
    with torch.no_grad():
        for layers in (2, MANY_STEPS):
            model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(layers)))
            x = torch.randn(1, 4, 9, 9)
            plan = bt.optimize(model.eval(), x)
            asked.clear()
            plan(x)
            assert bool(asked) == (layers == MANY_STEPS)


@torch.no_grad()
@pytest.mark.parametrize("accuracy", ["float32", "exact"])
def test_a_plan_that_loses_time_runs_on_one_thread_unless_exact(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    two_threads: SimpleNamespace,
    accuracy: str,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()).eval(), torch.randn(1, 8, 20, 20)
    plan = bt.optimize(model, x, accuracy=accuracy)
    known = next(reversed(plan._programs.values())).program
    known.noisy_choices._noisy = []  # a race would drop the step
    seen: list[int] = []
    binding = known.borrow()
    for runs in (binding.runs, binding.joined):
        runs.append(lambda: seen.append(torch.get_num_threads()))
    known.give_back(binding)
    expected: Tensor = plan(x)
    machine.busy = 1.0
    machine.lose_twice(known._team._retreat)
    known._team._all = known._team._used = 2
    known._team.ended = team_size.perf_counter()
    torch.testing.assert_close(plan(x), expected, rtol=1e-5, atol=1e-5)
    assert seen == [2, 2 if accuracy == "exact" else 1]
    monkeypatch.setattr(team_size, "current_lock", object)
    plan(x)
    assert seen[-1] == 2  # a lock promises the same bits
