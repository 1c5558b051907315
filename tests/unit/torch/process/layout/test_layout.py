"""The layout of a model changes no value, is kept only if the step gains, and can be put back."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bestof.torch as bt
from bestof.configuration import parse_configuration
from bestof.errors import InvalidArgument, TorchError
from bestof.torch.process.layout import model as model_module
from bestof.torch.process.layout.interception import layout_lines, tune_layouts
from bestof.torch.process.layout.known_operators import KnownOperators
from bestof.torch.process.layout.weights import Weights

ONLY_LAYOUT = {"kernel": {"enable": False}, "layout": {"enable": True}}


class Net(nn.Module):
    """A small network with buffers, and a change from images to vectors."""

    def __init__(self, by_view: bool = False, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 36, 4)
        self.by_view = by_view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x))
        return self.last(x.view(len(x), -1) if self.by_view else x.flatten(1))


class Clock:
    """Time that only passes where a layout is said to take it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Costly(nn.Module):
    """Lets time pass by the layout of its input."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 0.5 if x.is_contiguous(memory_format=torch.channels_last) else 1.0
        return x


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    bt.disable()


def train(
    net: nn.Module,
    steps: int,
    clock: Clock | None = None,
    seconds: Callable[[bool], float] = lambda last: 1.0,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> list[float]:
    """Train on fixed images. Return the losses; `clock` advances by what the layout costs."""
    torch.manual_seed(7)
    optimizer = make(net.parameters(), lr=0.05, **options)
    x, y = torch.randn(4, 3, 6, 6), torch.arange(4)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if clock is not None:
            clock.now += seconds(is_last(net))
        optimizer.step()
        losses.append(loss.item())
    return losses


def is_last(net: nn.Module) -> bool:
    weight = net.get_parameter("second.weight")
    return weight.is_contiguous(memory_format=torch.channels_last)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(model_module, "perf_counter", made)
    return made


@pytest.mark.parametrize("last_costs", [0.5, 2.0, 1.0])
def test_channels_last_stays_only_where_the_step_gains(clock: Clock, last_costs: float) -> None:
    net = Net()
    strides = {name: one.stride() for name, one in net.named_parameters()}
    bt.set_config(ONLY_LAYOUT)
    train(net, 200, clock, lambda last: last_costs if last else 1.0)
    assert is_last(net) == (last_costs < 1)
    line = layout_lines()[-1]
    assert ("Net: channels last;" in line) == (last_costs < 1)
    if last_costs < 1:
        assert "2.000 (2.000 to 2.000" in line
    bt.disable()
    assert strides == {name: one.stride() for name, one in net.named_parameters()}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
    ],
)
def test_the_layout_changes_no_result(
    clock: Clock, make: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    torch.manual_seed(3)
    net = Net().double()
    plain = copy.deepcopy(net)
    torch.set_default_dtype(torch.float64)
    try:
        expected = train(plain, 60, make=make, **options)
        bt.set_config(ONLY_LAYOUT)
        found = train(net, 60, clock, lambda last: 1.0, make, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    # The same float64 steps with sums in another order: rounding grows, but stays far from 1e-6.
    assert found == pytest.approx(expected, rel=1e-6)
    for one, other in zip(net.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_gradients_and_state_get_the_strides_of_their_weight() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net(torch.randn(2, 3, 6, 6)).sum().backward()
    optimizer.step()
    values = {name: one.detach().clone() for name, one in net.named_parameters()}
    weights = Weights(net)
    for last in (True, False):
        weights.convert(last, [optimizer])
        assert is_last(net) == last
        for name, one in net.named_parameters():
            assert torch.equal(one, values[name])
            assert one.grad is not None
            assert one.grad.stride() == one.stride()
            assert optimizer.state[one]["exp_avg"].stride() == one.stride()


def test_a_model_that_views_its_images_is_left_as_it_is(clock: Clock) -> None:
    net = Net(by_view=True)
    expected = train(copy.deepcopy(net), 60)
    bt.set_config(ONLY_LAYOUT)
    assert train(net, 60, clock, lambda last: 0.1 if last else 1.0) == expected
    assert not is_last(net)
    assert any("fails in channels last: RuntimeError: view size" in one for one in layout_lines())


def test_a_model_with_a_group_norm_is_left_as_it_is(clock: Clock) -> None:
    net = Net(norm=nn.GroupNorm(2, 8))
    expected = train(copy.deepcopy(net), 60)
    bt.set_config(ONLY_LAYOUT)
    assert train(net, 60, clock, lambda last: 0.1 if last else 1.0) == expected
    assert not is_last(net)
    assert any("group norm of (4, 8, 6, 6) is less exact" in one for one in layout_lines())


@pytest.mark.parametrize("last", [torch.channels_last, torch.channels_last_3d])
def test_a_group_norm_is_refused_in_channels_last_only(last: torch.memory_format) -> None:
    x = torch.randn(2, 4, *[3] * (3 if last is torch.channels_last_3d else 2))
    with KnownOperators(False):
        torch.nn.functional.group_norm(x, 2)
        with pytest.raises(TorchError, match="less exact"):
            torch.nn.functional.group_norm(x.contiguous(memory_format=last), 2)


def test_weights_whose_memory_is_shared_are_left_alone() -> None:
    net = Net()
    kept = net.second.weight.detach()
    assert Weights(net).objection() == "other tensors share the memory of its weights"
    del kept
    assert Weights(net).objection() is None


def test_inference_is_tuned_on_its_calls_and_returns_channels_first(clock: Clock) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Costly(clock)).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        expected = net(x)
        bt.set_config(ONLY_LAYOUT)
        weight = net[0].weight
        for _ in range(120):
            found = net(x)
            assert found.is_contiguous()
            torch.testing.assert_close(found, expected)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_bare_enable_and_a_missing_key_leave_layouts_alone(clock: Clock) -> None:
    for config in (None, {}, {"layout": {}}, {"kernel": {"pooling": False}}):
        assert not parse_configuration(config).layout
    bt.set_config({"kernel": {"enable": False}})
    net = Net()
    train(net, 60, clock, lambda last: 0.1 if last else 1.0)
    assert not is_last(net)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"layout": {"enable": 1}}, "layout.enable: expected true or false; got 1"),
        ({"layout": {"enabled": True}}, "unknown key 'layout.enabled'; did you mean"),
        ({"layout": "channels_last"}, "layout: expected a dict; got str"),
    ],
)
def test_bad_values_are_refused_before_anything_changes(
    clock: Clock, config: dict[str, Any], told: str
) -> None:
    bt.set_config(ONLY_LAYOUT)
    with pytest.raises(InvalidArgument, match=told):
        bt.set_config(config)
    net = Net()
    train(net, 120, clock, lambda last: 0.5 if last else 1.0)
    assert is_last(net)  # what was configured before still holds


def test_a_model_that_is_called_by_keywords_is_left_alone(clock: Clock) -> None:
    bt.set_config(ONLY_LAYOUT)
    net = Net().eval()
    with torch.no_grad():
        for _ in range(3):
            assert net(x=torch.ones(1, 3, 6, 6)).shape == (1, 4)
    assert layout_lines()[-1] == "layout Net: as is; it is called without positional tensors"


def test_state_from_a_checkpoint_follows_a_fixed_layout() -> None:
    torch.manual_seed(2)
    plain = Net()
    x = torch.randn(2, 3, 6, 6)

    def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    first = torch.optim.Adam(plain.parameters(), fused=True)
    step(plain, first)
    net = copy.deepcopy(plain)
    second = torch.optim.Adam(net.parameters(), fused=True)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    tune_layouts(True, fixed=True)
    try:
        step(net, second)
        assert is_last(net)
        assert second.state[net.second.weight]["exp_avg"].stride() == net.second.weight.stride()
    finally:
        tune_layouts(False)
    step(plain, first)
    # One step of 0.001 from equal states; the sums of float32 gradients differ by rounding only.
    torch.testing.assert_close(net.second.weight, plain.second.weight, rtol=0, atol=1e-5)


def test_weights_can_be_trained_after_a_probe_in_inference_mode() -> None:
    net = Net(by_view=True)  # the probe fails, so the layout is put back at once
    bt.set_config(ONLY_LAYOUT)
    with torch.inference_mode():
        net.eval()(torch.randn(2, 3, 6, 6))
    assert not any(one.is_inference() for one in net.parameters())
    net.train()(torch.randn(2, 3, 6, 6)).sum().backward()
    assert all(one.grad is not None for one in net.parameters())


class Counting(nn.Module):
    """Replaces its buffer and an attribute at each call, and draws random numbers."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.drawn: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        numbers = [random.random(), np.random.rand(), float(torch.rand(()))]
        self.drawn.extend(numbers)
        return self.convolution(x) * self.calls


def seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


@pytest.mark.parametrize("training", [False, True])
def test_a_probe_changes_nothing(training: bool) -> None:
    net = Counting()
    plain, x = copy.deepcopy(net), torch.randn(2, 3, 6, 6)
    gradients: list[torch.Tensor] = []
    net.convolution.weight.register_hook(gradients.append)
    seed()
    with torch.set_grad_enabled(training):
        right = plain(x)
    bt.set_config(ONLY_LAYOUT)
    seed()
    with torch.set_grad_enabled(training):
        found = net(x)
    assert net.calls == 1
    assert net.drawn == plain.drawn
    assert torch.equal(found, right)
    assert gradients == []
    assert net.convolution.weight.grad is None


def test_a_model_with_hooks_is_left_alone(clock: Clock) -> None:
    net, seen = Net(), []
    net.second.register_forward_hook(lambda *given: seen.append(given[2].shape))
    bt.set_config(ONLY_LAYOUT)
    train(net, 12, clock, lambda last: 0.1 if last else 1.0)
    assert len(seen) == 12
    assert not is_last(net)
    assert any("it has hooks, which would see a probe" in one for one in layout_lines())


def test_a_model_that_cannot_be_copied_is_left_alone(clock: Clock) -> None:
    net = Net()
    net.lock = threading.Lock()  # type: ignore[assignment]  # no tensor
    bt.set_config(ONLY_LAYOUT)
    train(net, 12, clock, lambda last: 0.1 if last else 1.0)
    assert not is_last(net)
    assert any("it cannot be copied: TypeError: cannot pickle" in one for one in layout_lines())


class Gpu:
    """Stands in for CUDA: the weights stay on the CPU, and are said to be on a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.capturing = False
        monkeypatch.setattr(Weights, "devices", lambda _: {torch.device("cuda", 0)})
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        # Without a GPU, PyTorch has no state of its random numbers to save.
        fork = torch.random.fork_rng
        monkeypatch.setattr(torch.random, "fork_rng", lambda *_, **__: fork([]))

    def wait(self, device: torch.device) -> None:
        assert device.type == "cuda"
        assert not self.capturing
        self.waits += 1


def test_a_gpu_is_waited_for_while_layouts_are_compared(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    net = Net()
    bt.set_config(ONLY_LAYOUT)
    train(net, 200, clock, lambda last: 0.5 if last else 1.0)
    assert is_last(net)
    compared = gpu.waits
    assert compared >= 2 * 6 * 8  # before and after each step of six pairs of turns
    train(net, 20, clock)
    assert gpu.waits == compared


@pytest.mark.parametrize("steps", [3, 200])
def test_a_model_in_a_cuda_graph_keeps_its_weights_where_they_are(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    gpu = Gpu(monkeypatch)
    net = Net()
    bt.set_config(ONLY_LAYOUT)
    train(net, steps, clock, lambda last: 0.5 if last else 1.0)
    gpu.capturing = True
    addresses = [one.data_ptr() for one in net.parameters()]
    train(net, 1)
    gpu.capturing = False
    train(net, 100, clock, lambda last: 2.0 if last else 1.0)
    bt.disable()
    assert addresses == [one.data_ptr() for one in net.parameters()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_float16_model_on_a_gpu_trains_the_same() -> None:
    losses = []
    for tuned in (False, True):
        bt.set_config({"kernel": {"enable": False}, "layout": {"enable": tuned}})
        torch.manual_seed(3)
        net = Net().cuda()
        x, y = torch.randn(4, 3, 6, 6, device="cuda"), torch.arange(4, device="cuda")
        optimizer, scaler = torch.optim.SGD(net.parameters(), 0.05), torch.amp.GradScaler()
        for _ in range(200):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    assert "not decided" not in layout_lines()[-1]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
