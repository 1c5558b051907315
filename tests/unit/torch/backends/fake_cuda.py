"""A fake CUDA device on the CPU: kernels run at once, and its stream advances when a test says
so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
import torch

from bestof.torch.backends.cuda.device import CUDA
from bestof.torch.backends.cuda.events import CudaTimer
from bestof.torch.backends.device import Device
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import passes_on

SECONDS = {"as is": 3e-3, "channels last": 2e-3, "cudnn benchmark": 1e-3}
OTHERS = 4e-3


class FakeStream:
    """What was put into it, and how far the device has come."""

    def __init__(self) -> None:
        self.queue: list[FakeEvent | float] = []
        self.now = 0.0
        self.recorded = 0
        self.queried = 0
        self.capturing = False
        self.lost: Exception | None = None

    def runs(self) -> None:
        """The device catches up."""
        for entry in self.queue:
            if isinstance(entry, FakeEvent):
                entry.passed = self.now
            else:
                self.now += entry
        self.queue.clear()

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost


class FakeEvent:
    """torch.cuda.Event of the one stream there is."""

    stream: FakeStream

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.passed: float | None = None

    def record(self, stream: FakeStream) -> None:
        stream.check()
        assert stream is self.stream
        assert not stream.capturing, "an event of ours in a captured graph"
        stream.recorded += 1
        stream.queue.append(self)

    def query(self) -> bool:
        self.stream.check()
        assert not self.stream.capturing, "asking for an event breaks a capture"
        self.stream.queried += 1
        return self.passed is not None

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.passed is not None
        assert end.passed is not None
        return (end.passed - self.passed) * 1e3

    def synchronize(self) -> None:
        raise AssertionError("waited for the device")


def fake_override(
    stream: FakeStream, patch: pytest.MonkeyPatch, *, by_shim: bool = False
) -> ConvolutionOverride:
    """An override for a device with the dispatch key of the processor; every row takes its time in
    the stream."""
    patch.setattr(FakeEvent, "stream", stream, raising=False)
    patch.setattr(torch.cuda, "Event", FakeEvent)
    patch.setattr(torch.cuda, "current_stream", lambda device: stream)
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: stream.capturing)
    patch.setattr(torch.cuda, "synchronize", FakeEvent.synchronize)

    def timed(row: Pass) -> Pass:
        def run(*args: Any) -> Any:
            stream.queue.append(SECONDS.get(row.name, OTHERS))
            return row.function(*args)

        return replace(row, function=run)

    name: Callable[[Any], str] = lambda _: "Fake-9000"  # noqa: E731
    depends: Callable[[], tuple[str, ...]] = lambda: ("cuda==9",)  # noqa: E731
    device = Device("CPU", "cuda ", attrgetter("is_cpu"), name, depends, CudaTimer())
    parts = [Override(type(one)(device, tuple(map(timed, one.rows)))) for one in passes_on(CUDA)]
    return ConvolutionOverride(device, parts, by_shim=by_shim)
