"""Plans use fewer threads beside neighbours where that is faster, and all of them otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run import program as program_module
from bestof.torch.plan.run import team_size
from bestof.torch.plan.run.team_size import BLOCK, SELDOM, WINS, TeamSize, run_on_team

QUIET = {1: 0.0049, 2: 0.0030}  # seconds of a call of MobileNetV3, by threads
BESIDE_ONE = {1: 0.0049, 2: 0.0056}
WAITED = 0.3
PAIR = 2 * (BLOCK + 0.01)  # seconds, at most
TRIAL, REST = WINS * PAIR, SELDOM * PAIR


def used(size: TeamSize, costs: dict[int, float], waited: float, seconds: float) -> list[int]:
    """Call for so many seconds. Return the number of threads of each call."""
    now, found, every = 0.0, [], max(costs)
    while now < seconds:
        threads = size.ask(every, waited)
        now += costs[threads]
        size.tell(threads, costs[threads])
        found.append(threads)
    return found


def test_without_neighbours_all_threads_are_used() -> None:
    size = TeamSize()
    assert set(used(size, QUIET, 0.0, 60.0)) == {2}
    assert not size.is_open


def test_fewer_threads_are_used_where_they_are_faster() -> None:
    size = TeamSize()
    assert used(size, BESIDE_ONE, WAITED, TRIAL)[-1] == 1
    # One thread does not wait. All are tried seldom, and not for long.
    later = used(size, BESIDE_ONE, 0.0, 60.0)
    assert size.is_open
    assert 0 < later.count(2) < 0.05 * len(later)


def test_all_threads_are_used_again_once_the_neighbours_have_gone() -> None:
    size = TeamSize()
    used(size, BESIDE_ONE, WAITED, REST)
    assert size.is_open
    used(size, QUIET, 0.0, REST + TRIAL)
    assert not size.is_open
    assert set(used(size, QUIET, 0.0, 60.0)) == {2}


@pytest.mark.parametrize("costs", [{1: 0.05, 2: 0.04}, {1: 0.0098, 2: 0.01}])
def test_fewer_threads_that_gain_little_are_not_used(costs: dict[int, float]) -> None:
    """A large model gains by its second thread, which has a part of a processor."""
    size = TeamSize()
    found = used(size, costs, WAITED, 60.0)
    assert size._used == 2
    assert 0 < found.count(1) < 0.05 * len(found)


def test_calls_of_a_second_are_tried_less_often() -> None:
    found = used(TeamSize(), {1: 1.0, 2: 0.8}, WAITED, 400.0)
    assert 0 < found.count(1) < 0.06 * len(found)


def test_a_pair_that_is_lost_ends_a_trial() -> None:
    size = TeamSize()
    for pair in range(20 * WINS):
        assert size.ask(2, WAITED) == 1
        size.tell(1, 1.0)
        assert size.ask(2, WAITED) == 2
        size.tell(2, 0.5 if pair % WINS == WINS - 1 else 2.0)  # two of three pairs are won
        if pair % WINS == WINS - 1:
            assert size.ask(2, WAITED) == 2
            size.tell(2, 1000.0)
    assert size._used == 2


def test_a_call_of_a_block_that_another_thread_has_ended_is_not_counted() -> None:
    size = TeamSize()
    assert size.ask(2, WAITED) == 1
    size.tell(1, BLOCK)
    assert size.ask(2, WAITED) == 2
    size.tell(1, 100.0)  # it began while one thread was tried
    assert size.ask(2, WAITED) == 2


def test_processors_that_neighbours_leave_are_tried() -> None:
    costs = dict.fromkeys(range(1, 9), 1.0)
    assert set(used(TeamSize(), costs, 0.25, 100.0)) == {8, 6}


def test_between_both_ends_fewer_and_all_are_tried_in_turn() -> None:
    costs = {8: 1.0} | dict.fromkeys(range(1, 8), 0.8)
    size = TeamSize()
    assert used(size, costs, 0.25, 10.0)[-1] == 6
    assert set(used(size, costs, 0.25, 200.0)) == {4, 6, 8}


def test_another_number_of_threads_begins_anew() -> None:
    size = TeamSize()
    used(size, BESIDE_ONE, WAITED, TRIAL)
    assert size.is_open
    assert size.ask(4, 0.0) == 4
    assert not size.is_open


class Machine:
    """A machine on which calls take as long as `costs` says. `seen`: the threads of each call."""

    def __init__(self) -> None:
        self.costs, self.now, self.seen = BESIDE_ONE, 0.0, list[int]()
        self.watch = SimpleNamespace(watches=True, waited=WAITED)

    def compute(self) -> None:
        """Compute a step, by kernels that ask OpenMP for its threads."""
        self.seen.append(torch.get_num_threads())
        self.now += self.costs[self.seen[-1]]

    def call(self, plan: OptimizedModel, x: Tensor, seconds: float) -> Tensor:
        """Call a plan for so many seconds. Return the last result."""
        end = self.now + seconds
        while self.now < end:
            y = plan(x)
            assert torch.get_num_threads() == 2
        return y


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made, before = Machine(), torch.get_num_threads()
    monkeypatch.setattr(team_size, "NEIGHBOURS", made.watch)
    monkeypatch.setattr(program_module, "NEIGHBOURS", made.watch)
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(team_size, clock, lambda: made.now)
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(before)


def plan_on(machine: Machine, accuracy: str = "float32") -> tuple[OptimizedModel, Tensor]:
    """Return a plan whose last step takes the machine's time, and an input."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()).eval(), torch.randn(1, 8, 20, 20)
    machine.watch.waited = 0.0
    plan = bt.optimize(model, x, accuracy=accuracy)
    known = next(reversed(plan._programs.values())).program
    known.noisy_choices._noisy = []  # a race would drop the step
    binding = known.borrow()
    assert binding.settled
    for runs in (binding.runs, binding.joined):
        runs.append(machine.compute)
    known.give_back(binding)
    machine.watch.waited = WAITED
    return plan, x


@torch.no_grad()
def test_a_plan_runs_on_one_thread_beside_neighbours_and_on_two_later(machine: Machine) -> None:
    plan, x = plan_on(machine)
    machine.watch.waited = 0.0
    alone = machine.call(plan, x, TRIAL)
    assert set(machine.seen) == {2}
    machine.watch.waited = WAITED
    beside = machine.call(plan, x, TRIAL)
    assert machine.seen[-1] == 1
    torch.testing.assert_close(beside, alone, rtol=1e-5, atol=1e-5)
    machine.watch.waited, machine.costs = 0.0, QUIET
    machine.call(plan, x, 3 * REST)
    machine.seen.clear()
    machine.call(plan, x, 3 * REST)
    assert set(machine.seen) == {2}


@torch.no_grad()
@pytest.mark.parametrize("reason", ["exact", "deterministic", "locked"])
def test_where_bits_are_promised_a_plan_uses_all_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    plan, x = plan_on(machine, "exact" if reason == "exact" else "float32")
    if reason == "locked":
        monkeypatch.setattr(team_size, "current_lock", object)
    torch.use_deterministic_algorithms(reason == "deterministic")
    try:
        machine.call(plan, x, REST)
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(machine.seen) == {2}


@torch.no_grad()
def test_where_neighbours_leave_no_processor_the_times_decide(machine: Machine) -> None:
    plan, x = plan_on(machine)
    machine.call(plan, x, TRIAL)
    assert machine.seen[-1] == 1
    machine.watch.waited, machine.costs = 0.6, {1: 0.0110, 2: 0.0070}
    machine.call(plan, x, REST + TRIAL)
    machine.seen.clear()
    machine.call(plan, x, 10 * REST)
    assert 0 < machine.seen.count(1) < 0.05 * len(machine.seen)


@torch.no_grad()
def test_a_plan_that_nobody_watches_returns_to_all_threads(machine: Machine) -> None:
    plan, x = plan_on(machine)
    machine.call(plan, x, TRIAL)
    assert machine.seen[-1] == 1
    machine.watch.watches, machine.watch.waited = False, 0.0
    machine.seen.clear()
    machine.call(plan, x, REST)
    assert set(machine.seen) == {2}


def test_a_call_that_fails_puts_the_threads_back(machine: Machine) -> None:
    size = TeamSize()

    def fail() -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run_on_team(size, [fail])
    assert torch.get_num_threads() == 2
    run_on_team(size, [machine.compute])  # the trial goes on
    assert machine.seen == [1]
