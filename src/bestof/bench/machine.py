"""Measures two ceilings of this machine, for other benchmarks.

`multiply_adds` needs no memory. `copies` move more bytes than the caches hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy

from bestof import kernels
from bestof.processors import processors

# The number of elements of a copy: 64 MiB on either side.
_COPIED = 1 << 24

# The number of multiply-adds of a thread: about 5 ms.
_STEPS = 1 << 18


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A run towards one ceiling: `call` does `work` FLOPs, or moves `work` bytes."""

    call: Callable[[], object]
    work: float


def openmp_threads() -> int:
    """Return how many threads OpenMP uses: OMP_NUM_THREADS, or one for each processor allowed.

    The variable may be a list, for regions within regions. OpenMP passes over other texts.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(processors().allowed)


def multiply_adds() -> Ceiling:
    """Return a run of independent multiply-adds in registers, on all threads, and its FLOPs."""
    return Ceiling(lambda: kernels.multiply_adds(_STEPS), kernels.multiply_adds(_STEPS))


def copies(threads: int | None = None) -> dict[str, Ceiling]:
    """Return copies of 64 MiB, and the bytes that each reads plus writes.

    `memcpy` is the copy of the C library, on `threads` threads. `kernels` is that of the native
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
