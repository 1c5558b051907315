"""Which modules met a problem: in the forward pass, in the backward pass, and those alike."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from bestof.torch.dispatch.met_modules import MetModules, met
from bestof.torch.rows.call_counts import CallCounts


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetModules]:
    made = MetModules()
    monkeypatch.setattr("bestof.torch.dispatch.met_modules.MET_MODULES", made)
    made.start()
    yield made
    made.stop()


class Counting(torch.autograd.Function):
    """Doubles a tensor, and counts both passes as a problem each, by its size."""

    counts: CallCounts[tuple[str, int]]

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        Counting.counts.count(("forward", x.numel()))
        return 2 * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        Counting.counts.count(("backward", grad.numel()))
        return 2 * grad


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Counting.apply(x)
        return result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = Doubled(), nn.Sequential(Doubled(), nn.Flatten(0), Doubled())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(self.first(x))
        return result


def places(counts: CallCounts[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, ...]]:
    return {key: one.places for key, one in met(counts).items()}


def test_both_passes_know_their_modules(modules: MetModules) -> None:
    Counting.counts = CallCounts()
    net = Net()
    for _ in range(3):
        net(torch.ones(2, 3, requires_grad=True)).sum().backward()
    found = places(Counting.counts)
    assert set(found[("forward", 6)]) == {"first", "block.0", "block.2"}
    assert set(found[("backward", 6)]) == {"first", "block.0", "block.2"}
    assert met(Counting.counts)[("forward", 6)].calls == 9


def test_modules_that_are_alike_share_a_problem_that_one_of_them_met(modules: MetModules) -> None:
    class Once(nn.Module):
        """Only its first call of a size is counted, as others are answered in C++."""

        seen: ClassVar[set[int]] = set()

        def forward(self, x: Tensor) -> Tensor:
            if x.numel() not in Once.seen:
                Once.seen.add(x.numel())
                Counting.counts.count(("forward", x.numel()))
            return x

    Counting.counts = CallCounts()
    net = nn.Sequential(Once(), Once(), nn.AvgPool1d(2), Once())
    for _ in range(2):
        net(torch.ones(2, 8))
    found = places(Counting.counts)
    # The first met its problem before the hooks went in, and is in this pass for the first time.
    assert set(found[("forward", 16)]) == {"0", "1"}
    assert found[("forward", 8)] == ("3",)


def test_modules_with_weights_of_other_sizes_are_not_alike(modules: MetModules) -> None:
    class Silent(nn.Module):
        """Tells no sizes by `extra_repr`, like `Conv1D` of transformers."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            Counting.counts.count(("forward", self.weight.numel()))
            return x

    Counting.counts = CallCounts()
    net = nn.Sequential(Silent(2), Silent(3), Silent(2))
    for _ in range(2):
        net(torch.ones(2, 8))
    found = places(Counting.counts)
    assert set(found[("forward", 2)]) == {"0", "2"}
    assert found[("forward", 3)] == ("1",)


def test_the_hooks_go_in_late_and_come_out_soon(modules: MetModules) -> None:
    Counting.counts = CallCounts()
    quiet = nn.Sequential(nn.ReLU())
    quiet(torch.ones(1))
    assert not hooks._global_forward_hooks
    net = Net()
    net(torch.ones(2, 3))
    assert hooks._global_forward_hooks
    for _ in range(6):
        net(torch.ones(2, 3))
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


def test_a_module_that_raises_does_not_confuse_the_names(modules: MetModules) -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("fake")

    Counting.counts = CallCounts()
    Doubled()(torch.ones(3))
    with pytest.raises(ValueError, match="fake"):
        nn.Sequential(Doubled(), Raises())(torch.ones(4))
    net = Net()
    net(torch.ones(2, 3))
    assert all("Net" in name for name in places(Counting.counts)[("forward", 6)])


def test_a_faulty_module_keeps_its_own_faults(modules: MetModules) -> None:
    class Faulty(Doubled):
        def extra_repr(self) -> str:
            raise RuntimeError("fake")

    Counting.counts = CallCounts()
    net = nn.Sequential(Doubled(), Faulty())
    for _ in range(2):
        assert net(torch.ones(7)).tolist() == [4.0] * 7
    assert "0" in places(Counting.counts)[("forward", 7)]


def test_models_are_not_kept_alive(modules: MetModules) -> None:
    Counting.counts = CallCounts()
    net = Net()
    net(torch.ones(2, 3))
    net(torch.ones(2, 3))
    watched = weakref.ref(net)
    del net
    gc.collect()
    assert watched() is None


class Stops(nn.Module):
    """An interrupt arrives in its second call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt
        return x


class Unnamed(Doubled):
    def extra_repr(self) -> str:
        raise RuntimeError("fake")


@pytest.mark.parametrize("last", [Stops, Unnamed])
def test_after_an_error_in_a_first_pass_no_hook_and_no_model_stays(
    modules: MetModules, last: type[nn.Module]
) -> None:
    Counting.counts = CallCounts()
    net = nn.Sequential(Doubled(), nn.Sequential(nn.ReLU(), last()))
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            net(torch.ones(6))
    watched = weakref.ref(net)
    del net
    gc.collect()
    assert watched() is None
    other = Net()
    for _ in range(8):
        other(torch.ones(2, 3))
    assert not hooks._global_forward_hooks
    assert "Net.block.0" in places(Counting.counts)[("forward", 6)]


def test_modules_that_want_other_gradients_are_not_alike(modules: MetModules) -> None:
    Counting.counts = CallCounts()
    net = nn.Sequential(Doubled(), nn.Linear(3, 3), Doubled(), Doubled())
    for _ in range(3):
        net(torch.ones(2, 3))
    looks = modules._look
    first, third, fourth = (looks[("Sequential", name)] for name in ("0", "2", "3"))
    assert first != third
    assert third == fourth


def test_calls_outside_of_modules_have_no_name(modules: MetModules) -> None:
    Counting.counts = CallCounts()
    Counting.apply(torch.ones(5))
    assert places(Counting.counts) == {("forward", 5): ()}


def test_without_a_report_nothing_is_looked_up() -> None:
    assert CallCounts.where is None
    counts: CallCounts[int] = CallCounts()
    counts.count(1)
    assert counts.places == {}
