"""What this machine could do at most: multiply-adds that wait for nothing, and a copy that no cache can hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from os import environ

import numpy

from bestof import kernels
from bestof.bench.convolution.case import Case, aligned
from bestof.bench.convolution.run import Run

# Elements of the copy: 64 MiB on either side.
_COPIED = 1 << 24

# Multiply-adds of a thread: about 5 ms.
_STEPS = 1 << 18


def version() -> str:
    """What is measured."""
    return f"{kernels.isa()}, {environ['OMP_NUM_THREADS']} threads"


_ARRAYS = aligned((2, _COPIED))
_ARRAYS[:] = 1.0


def prepare(_case: Case) -> dict[str, Run]:
    """The same for every case: `work` is FLOPs for the multiply-adds, and bytes read and written for the copies."""
    threads = int(environ["OMP_NUM_THREADS"])
    source, target = _ARRAYS
    parts = [slice(_COPIED * i // threads, _COPIED * (i + 1) // threads) for i in range(threads)]
    pool = ThreadPoolExecutor(threads)
    shape = (1, 1, 1, _COPIED)

    def memcpy() -> None:
        list(pool.map(lambda part: numpy.copyto(target[part], source[part]), parts))

    def copy() -> None:
        kernels.transpose(source.reshape(shape), (0, 1, 2, 3), out=target.reshape(shape))

    flops = kernels.multiply_adds(_STEPS)
    moved = 8.0 * _COPIED
    return {
        "multiply-add": Run(lambda: kernels.multiply_adds(_STEPS), list, flops),
        "copy, memcpy": Run(memcpy, list, moved),
        "copy, kernels": Run(copy, list, moved),
    }
