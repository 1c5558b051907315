"""Native steps that follow each other run on one team of threads, where no neighbours compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.kernels import run_steps
from bestof.torch.plan.algorithms.native_runner import Guarded, native_runner
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run import program as program_module
from bestof.torch.plan.steps import joined_runs as joined_runs_module
from bestof.torch.plan.steps.binding import Binding
from bestof.torch.plan.steps.joined_runs import joined_runs
from bestof.torch.plan.steps.step import Step


class Team(list[int]):
    """The number of steps in each call of `run_steps`, and the watch for neighbours."""

    watch: SimpleNamespace


class Net(nn.Module):
    """Layers around an operator that only PyTorch has, with all kinds of native steps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish(), nn.MaxPool2d(2))
        self.expand, self.depthwise = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, 1, 1, groups=48)
        self.squeeze, self.excite = nn.Conv2d(48, 8, 1), nn.Conv2d(8, 48, 1)
        self.project, self.last = nn.Conv2d(48, 16, 1), nn.Conv2d(16, 32, 3, 1, 1)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(self.expand(x).relu()).relu()
        gate = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        x = x + self.project(y * gate)
        x = x.cumsum(1)  # no row of ours
        return self.out(self.last(x).relu().mean((2, 3)))


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """A team on a machine without neighbours."""
    seen = Team()
    seen.watch = SimpleNamespace(watches=True, waited=0.0, look=print)

    def counted(functions: list[Callable[[], object]], begin: int = 0) -> int:
        seen.append(len(functions) - begin)
        return run_steps(functions, begin)

    monkeypatch.setattr(joined_runs_module, "run_steps", counted)
    monkeypatch.setattr(program_module, "NEIGHBOURS", seen.watch)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield seen
    torch.set_num_threads(before)


def native_plan() -> tuple[OptimizedModel, Tensor, Binding]:
    """Return a plan whose layers are native, an input, and the binding that calls use."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    plan = bt.optimize(Net().eval(), x)
    known = next(reversed(plan._programs.values())).program
    known.noisy_choices._noisy = []  # a race would drop the binding
    for choice in known.choices.values():
        if choice.can_run("convgemm"):
            choice.settle("convgemm")
    known.bind_anew()
    plan(x)
    binding = known.borrow()
    known.give_back(binding)
    assert binding.settled
    return plan, x, binding


@torch.no_grad()
def test_native_steps_run_together_and_pytorchs_alone(team: Team) -> None:
    plan, x, binding = native_plan()
    assert any(one > 1 for one in team)
    assert 1 < len(binding.joined) < len(binding.runs)
    team.clear()
    together = plan(x)
    count = len(team)
    assert count > 0
    team.watch.waited = 0.3
    apart = plan(x)
    program = next(reversed(plan._programs.values())).program
    program._is_exact = True  # then no smaller number of threads is tried
    plan(x)
    program._is_exact = False
    team.watch.waited, team.watch.watches = 0.0, False
    unwatched = plan(x)
    assert len(team) == count
    assert torch.equal(together, apart)
    assert torch.equal(together, unwatched)


@torch.no_grad()
def test_an_error_of_a_step_reaches_the_caller_and_the_plan_goes_on(team: Team) -> None:
    plan, x, binding = native_plan()
    right = plan(x)
    place = next(i for i, one in enumerate(binding.steps) if one.convolution)
    step, stopped = binding.steps[place], native_runner(_interrupt)
    run, step.run = step.run, stopped
    binding.joined = joined_runs([replace(one, chosen=None) for one in binding.steps])
    team.clear()
    with pytest.raises(KeyboardInterrupt):
        plan(x)
    assert team
    step.run = run
    binding.refresh()
    assert torch.equal(plan(x), right)


@torch.no_grad()
def test_what_a_kernel_refuses_is_pytorchs_outside_of_the_team(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, bool]] = []

    def note(name: str, result: object = None) -> object:
        calls.append((name, in_team[-1]))
        return result

    in_team = [False]
    step = partial(Step, "step", "kind", 0, True)
    refuses = native_runner(lambda: note("refused", False))
    computes = native_runner(lambda: note("computed", True))
    steps = [
        step(native_runner(lambda: note("first"))),
        step(Guarded(refuses, lambda: note("by PyTorch"))),
        step(Guarded(computes, lambda: note("never"))),
        step(Guarded(refuses, lambda: note("by PyTorch again"))),
        step(lambda: note("alone")),
    ]

    def seen(functions: list[Callable[[], object]], begin: int = 0) -> int:
        in_team.append(True)
        try:
            return run_steps(functions, begin)
        finally:
            in_team.pop()

    monkeypatch.setattr(joined_runs_module, "run_steps", seen)
    runs = joined_runs(steps)
    assert len(runs) == 2
    for run in runs:
        run()
    assert calls == [
        ("first", True),
        ("refused", True),
        ("by PyTorch", False),
        ("computed", True),
        ("refused", True),
        ("by PyTorch again", False),
        ("alone", False),
    ]


@torch.no_grad()
def test_a_plan_whose_input_stands_out_gives_the_same_bits(team: Team) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)]
    x = torch.randn(1, 16, 32, 32)
    plan = bt.optimize(nn.Sequential(*layers).eval(), x)
    known = next(reversed(plan._programs.values())).program
    known.noisy_choices._noisy = []
    for choice in known.choices.values():
        choice.settle("winograd4")
    known.bind_anew()
    x[:, :, :2, :2] = 1e6
    plan(x)
    team.clear()
    together = plan(x)
    assert len(team) > 1  # it was refused, and went on
    team.watch.watches = False
    assert torch.equal(together, plan(x))


@torch.no_grad()
def test_plans_of_many_threads_run_on_teams_of_their_own(team: Team) -> None:
    plan, x, _ = native_plan()
    inputs = [torch.randn_like(x) for _ in range(8)]
    right = [plan(one) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: plan(one), inputs * 5))
    assert all(torch.equal(one, two) for one, two in zip(found, right * 5, strict=True))
    assert len(team) > 40
