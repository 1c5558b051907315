"""Each setting of a recipe holds in the process, and changes no result."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bestof.torch as bt
from bestof.recipe import apply as apply_module
from bestof.recipe.apply import apply
from bestof.recipe.settings import Settings
from bestof.recipe.step_clock import StepClock, seconds_of
from bestof.torch.process.data_loading.interception import follow
from bestof.torch.process.layout.interception import tune_layouts


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handles = []
    register = apply_module.register_optimizer_step_pre_hook
    monkeypatch.setattr(
        apply_module,
        "register_optimizer_step_pre_hook",
        lambda hook: handles.append(register(hook)),
    )
    threads = torch.get_num_threads()
    yield
    for handle in handles:
        handle.remove()
    torch.set_num_threads(threads)
    bt.disable()
    follow(None)
    tune_layouts(False)


def train(net: nn.Module, make: Any, **options: Any) -> list[float]:
    optimizer = make(net.parameters(), **options)
    torch.manual_seed(1)
    x, losses = torch.randn(4, 3, 6, 6, dtype=torch.float64), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3)).double()


@pytest.mark.parametrize("make", apply_module.FUSED)
def test_the_fused_optimizer_computes_the_same(make: Any) -> None:
    net = small_net()
    plain = copy.deepcopy(net)
    expected = train(plain, make, lr=0.01)
    apply(Settings(fused_optimizer=True, channels_last=True))
    assert train(net, make, lr=0.01) == pytest.approx(expected, rel=1e-9)
    weight: Any = net[2].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_an_optimizer_whose_form_the_script_chose_is_left() -> None:
    apply(Settings(fused_optimizer=True))
    chosen: tuple[tuple[dict[str, bool], bool | None], ...] = (
        ({"foreach": True}, None),
        ({"fused": False}, False),
        ({}, True),
    )
    for options, fused in chosen:
        net = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(net.parameters(), **options)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] == fused


def test_gradients_in_other_strides_are_not_fused() -> None:
    apply(Settings(fused_optimizer=True))
    weight = nn.Parameter(torch.randn(4, 3, 3, 3))
    plain = nn.Parameter(weight.detach().clone())
    gradient = torch.randn(4, 3, 3, 3)
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    weight.grad, plain.grad = gradient.clone(), gradient.clone()
    # A gradient that was set by hand keeps its own strides.
    assert weight.grad.stride() != weight.stride()
    for one in (weight, plain):
        torch.optim.Adam([one]).step()
    # Both take the same operations for each element, in float32: a few roundings of lr.
    torch.testing.assert_close(weight, plain, rtol=1e-6, atol=1e-8)


def test_workers_are_for_loaders_without_any() -> None:
    apply(Settings(workers=1))
    data = TensorDataset(torch.arange(12.0))
    loader = DataLoader(data, batch_size=4)
    assert [batch[0].tolist() for batch in loader] == [
        [0.0, 1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0, 7.0],
        [8.0, 9.0, 10.0, 11.0],
    ]
    assert loader.num_workers == 1

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    stream = DataLoader(Stream(), batch_size=None)
    assert list(stream) == [0, 1, 2]
    assert stream.num_workers == 0


def test_threads_are_set() -> None:
    apply(Settings(threads=1))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("times", "mean"),
    [
        ([(1.0, False), (3.0, False)], 2.0),
        ([(1.0, False), (9.0, True), (3.0, False)], 2.0),  # a validation
        ([(1.0, True), (3.0, True)], 2.0),  # each step calls a model without gradients
    ],
)
def test_a_step_with_a_validation_is_left_out(times: list[tuple[float, bool]], mean: float) -> None:
    assert seconds_of(times) == mean


class TurnClock(StepClock):
    """Notes for each turn the step at its end and the seconds it measured; pauses are free."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, float | None]] = []
        super().__init__(self._note)

    def _note(self, seconds: float | None) -> float:
        self.turns.append((self.steps, seconds))
        return 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[TurnClock]:
    """A running clock; what it changes in PyTorch is as before after the test."""
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    clock = TurnClock()
    clock.start()
    yield clock
    clock.stop()


def test_the_clock_goes_on_with_another_optimizer(clock: TurnClock) -> None:
    net = nn.Linear(2, 2)
    for optimizer in [torch.optim.SGD(net.parameters(), 0.1) for _ in range(3)]:
        for _ in range(6):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    # The first step of another one could be a second optimizer's.
    assert clock.steps == 6 + 5 + 5


def test_the_clock_counts_the_steps_of_one_optimizer(clock: TurnClock) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (first, second)]
    for _ in range(9):
        for net, optimizer in zip((first, second), optimizers, strict=True):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    clock.stop()
    assert clock.steps == 9
    # The first step, and then turns of a step that does not count and three that do.
    assert len(clock.turns) == 3
    assert clock.turns[0][1] is None
    assert clock.facts().optimizer
    assert not clock.facts().convolutions


def test_batches_that_workers_fetched_in_a_pause_are_not_counted(clock: TurnClock) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data: Any = torch.ones(20, 2)
    for batch in DataLoader(data, num_workers=1, prefetch_factor=3):
        net(batch).sum().backward()
        optimizer.step()
    clock.stop()
    # Each turn has a step and three batches that do not count, and three that do.
    assert [at for at, _ in clock.turns] == [1, 8, 15]


def test_calls_before_the_training_are_no_steps_of_it(clock: TurnClock) -> None:
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net(torch.ones(1, 2))  # to find the shapes
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with torch.no_grad():
        for _ in range(20):  # a validation
            net(torch.ones(1, 2))
    for _ in range(5):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    clock.stop()
    assert [at for at, _ in clock.turns] == [1, 6]
    assert clock.turns[0][1] is None
    assert clock.turns[1][1] is not None
    assert clock.facts().optimizer
