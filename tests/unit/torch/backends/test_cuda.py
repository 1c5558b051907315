"""Convolutions on a fake CUDA device. Parts that need a real one say so."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import SECONDS, FakeStream, fake_override
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.errors import BestofWarning
from bestof.torch.backends.cuda import device as cuda_device
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.overrides import _Made, convolution_overrides
from bestof.torch.ops.convolution import cudnn_benchmark
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.search_settings import BY_PYTHON_ON_DEVICE


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def override(stream: FakeStream, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConvolutionOverride]:
    one = fake_override(stream, monkeypatch)
    one.register()
    yield one
    one.remove()


def operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-4, 5, (2, 4, 9, 9), generator=generator).float()
    return x, torch.randint(-4, 5, (6, 4, 3, 3), generator=generator).float()


def step(x: Tensor, weight: Tensor) -> list[Tensor]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = functional.conv2d(x, weight, padding=1)
    out.backward(torch.arange(out.numel()).reshape(out.shape) % 7 - 3.0)
    assert x.grad is not None
    assert weight.grad is not None
    return [out.detach(), x.grad, weight.grad]


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    # Integers: exact but for the FFT, whose sums of 36 to 162 products of up to 16 err by 1e-3 at
    # most.
    for one, other in zip(got, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)


def decisions(override: ConvolutionOverride) -> list[str | None]:
    return [
        problem.decision
        for selector, _ in override.layer.passes
        for problem in selector.report().problems
    ]


def settle(
    override: ConvolutionOverride, stream: FakeStream, call: Callable[[], Any], limit: int = 200
) -> Any:
    for _ in range(limit):
        result = call()
        stream.runs()
        if decisions(override) and None not in decisions(override):
            return result
    raise AssertionError("never settled")


def test_times_of_events_decide_for_every_pass(
    override: ConvolutionOverride, stream: FakeStream
) -> None:
    x, weight = operands()
    override.remove()
    expected = step(x, weight)
    override.register()
    for _ in range(60):
        assert_close(step(x, weight), expected)
        stream.runs()
    assert decisions(override) == ["cudnn benchmark"] * 3
    for selector, _ in override.layer.passes:
        (problem,) = selector.report().problems
        assert problem.problem.endswith("on Fake-9000 threads=1")
        tried = {row.name: row.seconds for row in problem.alternatives if row.seconds is not None}
        assert len(tried) >= 5
        for name, seconds in tried.items():
            by_python = 0.0 if name == "as is" else BY_PYTHON_ON_DEVICE
            assert seconds == pytest.approx(SECONDS.get(name, 4e-3) + by_python)
        assert selector.name.startswith("cuda convolution")
    (group,) = override.layer.layer.report().problems
    assert (
        group.decision == "independent"
    )  # the lowered matrix is not shared there: nothing is timed by the clock


def test_a_device_that_is_behind_stops_nothing(
    override: ConvolutionOverride, stream: FakeStream
) -> None:
    x, weight = operands()
    expected = functional.conv2d(x, weight)
    for _ in range(300):
        assert torch.equal(functional.conv2d(x, weight), expected)
    assert stream.recorded == 2  # one trial; and FakeEvent fails where anybody waits
    assert override.layer.forward_pass.trials == 0
    stream.runs()
    functional.conv2d(x, weight)
    assert override.layer.forward_pass.trials == 1
    assert stream.recorded == 4


def test_while_a_graph_is_captured_nothing_is_tried_or_asked(
    override: ConvolutionOverride, stream: FakeStream
) -> None:
    x, weight = operands()
    call = lambda: functional.conv2d(x, weight)  # noqa: E731
    expected = call()
    stream.runs()
    stream.capturing = True
    recorded, queried = stream.recorded, stream.queried
    for _ in range(50):
        assert torch.equal(call(), expected)
    assert (stream.recorded, stream.queried) == (recorded, queried)
    stream.queue.clear()
    stream.capturing = False
    settle(override, stream, call)
    assert decisions(override) == ["cudnn benchmark"]
    stream.capturing = True
    for _ in range(100):  # the decision is what is captured; nothing watches it
        call()
    assert stream.queue == [SECONDS["cudnn benchmark"]] * 100


def test_a_lost_device_is_warned_of_once(override: ConvolutionOverride, stream: FakeStream) -> None:
    x, weight = operands()
    expected = functional.conv2d(x, weight)
    stream.lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.warns(
        BestofWarning, match="its timer raised RuntimeError: CUDA error: an illegal memory"
    ):
        assert all(torch.equal(functional.conv2d(x, weight), expected) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            assert torch.equal(functional.conv2d(x, weight), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_run_by_pytorchs_kernels_only(
    dtype: torch.dtype, override: ConvolutionOverride, stream: FakeStream
) -> None:
    x, weight = (one.to(dtype) for one in operands())
    settle(override, stream, lambda: functional.conv2d(x, weight))
    (problem,) = override.layer.forward_pass.report().problems
    assert {row.name for row in problem.alternatives if row.trials} == {
        "as is",
        "channels last",
        "cudnn benchmark",
    }


def test_python_is_asked_once_in_64_calls_until_all_is_decided(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = fake_override(stream, monkeypatch, by_shim=True)
    assert override.shim is not None
    x, weight = operands()
    expected = functional.conv2d(x, weight)
    override.register()
    try:
        for calls in range(1, 40 * 64):
            with torch.no_grad():
                assert_close([functional.conv2d(x, weight)], [expected])
            stream.runs()
            if decisions(override) == ["cudnn benchmark"]:
                break
            assert override.shim.asked <= 2 + calls // 64
        assert override.layer.forward_pass.trials > 5
        asked = override.shim.asked
        with torch.no_grad():
            for _ in range(10):  # Python has to call the chosen row
                functional.conv2d(x, weight)
        assert override.shim.asked == asked + 10
    finally:
        override.remove()


def test_the_setting_of_cudnn_is_as_before_after_the_last_that_needed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, done = threading.Barrier(2, timeout=250), threading.Event()
    seen: list[bool] = []

    def first() -> None:
        with cudnn_benchmark._switch.on():
            both.wait()
            done.wait(250)
            seen.append(torch.backends.cudnn.benchmark)

    assert not torch.backends.cudnn.benchmark
    thread = threading.Thread(target=first)
    thread.start()
    both.wait()
    with pytest.raises(ValueError, match="out of memory"), cudnn_benchmark._switch.on():
        raise ValueError("out of memory")
    assert torch.backends.cudnn.benchmark  # the other thread is still inside
    assert torch.backends.cudnn.deterministic
    done.set()
    thread.join()
    assert seen == [True]
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.deterministic
    plain = ConvProblem((1, 4, 9, 9), (4, 4, 3, 3), device="Fake-9000 tf32")
    assert cudnn_benchmark.supports(plain)
    assert not cudnn_benchmark.supports(plain._replace(device="Fake-9000 tf32 benchmark"))


def test_cudnn_measures_nothing_while_a_graph_is_captured(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_override(stream, monkeypatch)
    for capturing in (False, True):
        stream.capturing = capturing
        with cudnn_benchmark._switch.on():
            assert torch.backends.cudnn.benchmark != capturing
            assert torch.backends.cudnn.deterministic  # so that the choice from before is found
        assert not torch.backends.cudnn.deterministic


def test_what_changes_times_is_in_the_devices_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Fake {9000 + index} PCIe")
    cuda_device._model.cache_clear()
    there = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=1))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert cuda_device.CUDA.name(there) == "Fake-9001-PCIe"  # type: ignore[arg-type]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert cuda_device.CUDA.name(there) == "Fake-9001-PCIe tf32 benchmark"  # type: ignore[arg-type]
    assert cuda_device.CUDA.holds(there)  # type: ignore[arg-type]
    assert not cuda_device.CUDA.holds(torch.zeros(1))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert not cuda_device.CUDA.holds(there)  # type: ignore[arg-type]
    cuda_device._model.cache_clear()


def kernel(key: str) -> str:
    return repr(torch.library.get_kernel("aten::convolution", key))


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("built", [False, True])
def test_cuda_is_overridden_where_pytorch_has_it_and_the_user_asks(
    built: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(_Made, "overrides", ())
    before = kernel("CUDA")
    with integration.enabled({"kernel": {"cuda": asked}}):
        assert "bestof.torch.backends.shim" in kernel("CPU")
        assert ("bestof.torch.backends.shim" in kernel("CUDA")) == (built and asked)
        assert len(convolution_overrides()) == 1 + built
        with integration.enabled():
            assert kernel("CUDA") == before
        assert ("bestof.torch.backends.shim" in kernel("CUDA")) == (built and asked)
    assert kernel("CUDA") == before
    assert not torch.cuda.is_initialized()


def test_the_summary_counts_every_device(
    override: ConvolutionOverride, stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = operands()
    settle(override, stream, lambda: functional.conv2d(x, weight))
    override.remove()
    with integration.enabled():
        functional.conv2d(x, weight)
    monkeypatch.setattr(_Made, "overrides", (*_Made.overrides[:1], override))
    summary = integration.summary()
    assert summary.layers == 2
    assert [row.name for row in summary.passes] == ["forward", "cuda convolution forward"]
    assert summary.passes[1].chosen == "cudnn benchmark"
    assert summary.passes[1].seconds_as_is == pytest.approx(3e-3)
    assert (
        summary.trials
        == override.layer.forward_pass.trials + convolution_overrides()[0].layer.forward_pass.trials
    )
