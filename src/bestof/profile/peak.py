"""Measures the peaks of this machine: multiply-adds in registers, and a copy beyond the caches."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from bestof.profile.span import Span
from bestof.profile.stopwatch import Watch

# Multiply-adds of a thread, about 5 ms. Bytes of the copy, on either side.
_STEPS = 1 << 18
_COPIED = 1 << 26
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s in float32, and bytes/s read plus written.

    `others` is the share of the processors that other processes took during the measurement.
    """

    flops: float
    bandwidth: float
    others: float = 0.0

    def least(self, span: Span) -> float:
        """Return the least seconds for a span's work.

        Only float32 work has a known peak.
        """
        arithmetic = span.flops / self.flops if span.dtype in ("f32", "") else 0.0
        return max(arithmetic, span.bytes / self.bandwidth)


def measure_peak() -> Peak:
    """Measure for about a second, with PyTorch's number of threads. The best round counts.

    If other programs load the machine, the result is below its peaks, and `others` tells.
    """
    import torch  # noqa: PLC0415 - reading logs needs no PyTorch

    from bestof import kernels  # noqa: PLC0415 - needs NumPy

    threads = torch.get_num_threads()
    # The program may have set another default type or device.
    source = torch.ones(_COPIED // 4, dtype=torch.float32, device="cpu")
    target = torch.zeros_like(source)
    flops = bandwidth = 0.0
    watch = Watch()
    for _ in range(_ROUNDS):
        began = perf_counter()
        done = kernels.multiply_adds(_STEPS, threads=threads)
        middle = perf_counter()
        target.copy_(source)
        ended = perf_counter()
        flops = max(flops, done / (middle - began))
        bandwidth = max(bandwidth, 2.0 * _COPIED / (ended - middle))
    return Peak(flops, bandwidth, watch.read(_ROUNDS).others)
