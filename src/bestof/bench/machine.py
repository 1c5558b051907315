"""The two ceilings of this machine: multiply-adds that wait for nothing, and a copy that no cache
holds.

`multiply_adds` and `copies` are runs that any benchmark can time; `measure_peaks` times them and
returns the ceilings of a roofline.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy

from bestof import kernels
from bestof.errors import InvalidArgument

# Elements of the copy: 64 MiB on either side.
_COPIED = 1 << 24

# Multiply-adds of a thread: about 5 ms.
_STEPS = 1 << 18


@dataclass(frozen=True, slots=True)
class Peaks:
    """The ceilings of a machine: `flops` a second, and `bandwidth` in bytes read plus written a
    second.

    `isa` names the instruction set of the multiply-adds, `threads` how many OpenMP threads ran
    them.
    """

    flops: float
    bandwidth: float
    isa: str
    threads: int


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A run towards one ceiling: `call` does `work` FLOPs, or moves `work` bytes."""

    call: Callable[[], object]
    work: float


def openmp_threads() -> int:
    """Return how many threads OpenMP uses: OMP_NUM_THREADS, or one for each core."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def multiply_adds() -> Ceiling:
    """Return a run of independent multiply-adds in registers, on all threads, and its FLOPs."""
    return Ceiling(lambda: kernels.multiply_adds(_STEPS), kernels.multiply_adds(_STEPS))


def copies(threads: int | None = None) -> dict[str, Ceiling]:
    """Return copies of 64 MiB and the bytes that each reads plus writes.

    `memcpy` is the C library's, on `threads` threads; `kernels` is that of the native
    transposition.
    """
    threads = threads or openmp_threads()
    memory = numpy.ones((2, _COPIED), numpy.float32)
    source, target = memory
    parts = [slice(_COPIED * i // threads, _COPIED * (i + 1) // threads) for i in range(threads)]
    pool = ThreadPoolExecutor(threads)
    shape = (1, 1, 1, _COPIED)

    def memcpy() -> None:
        list(pool.map(lambda part: numpy.copyto(target[part], source[part]), parts))

    def copy() -> None:
        kernels.transpose(source.reshape(shape), (0, 1, 2, 3), out=target.reshape(shape))

    moved = 8.0 * _COPIED
    return {"memcpy": Ceiling(memcpy, moved), "kernels": Ceiling(copy, moved)}


def measure_peaks(*, repeats: int = 9, clock: Callable[[], float] = perf_counter) -> Peaks:
    """Measure both ceilings with as many threads as OpenMP uses: the best of `repeats` runs of
    each.

    The best and not the median: a ceiling that a slow moment of the machine lowers is none. The
    copy is the faster of the two. Raises InvalidArgument for fewer than one repeat.
    """
    if repeats < 1:
        raise InvalidArgument(f"repeats: expected at least 1; got {repeats}")
    arithmetic, moves = multiply_adds(), copies()
    flops = _best_rate(arithmetic, repeats, clock)
    bandwidth = max(_best_rate(copy, repeats, clock) for copy in moves.values())
    return Peaks(flops, bandwidth, kernels.isa(), openmp_threads())


def _best_rate(run: Ceiling, repeats: int, clock: Callable[[], float]) -> float:
    run.call()
    best = inf
    for _ in range(repeats):
        started = clock()
        run.call()
        best = min(best, clock() - started)
    return run.work / best
