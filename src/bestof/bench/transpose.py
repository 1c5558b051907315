"""Measure how fast activations change their layout, beside a copy and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy

from bestof import kernels
from bestof.bench.burst import burst
from bestof.bench.machine import openmp_threads
from bestof.bench.quartiles import Quartiles
from bestof.errors import InvalidArgument

# Activations of VGG16, by channels and extent.
ACTIVATIONS = ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14))

TURNS = {"to NHWC": (0, 2, 3, 1), "to NCHW": (0, 3, 1, 2)}

# Promised for the best algorithm: the share of a copy's bandwidth, and how many times NumPy.
REACH_OF_COPY, REACH_OF_NUMPY = 0.9, 3.0


@dataclass(frozen=True, slots=True)
class TransposeTime:
    """One algorithm on one array; NumPy counts as an algorithm.

    `rate` is bytes read plus written a second, of the median call. `of_copy` is the time of a copy
    over the algorithm's, and `of_numpy` that of NumPy over it, over the pairs of a round. `spread`
    is half the distance between the quartiles of `of_copy`.
    """

    shape: tuple[int, ...]
    turn: str
    algorithm: str
    seconds: float
    rate: float
    of_copy: float
    spread: float
    of_numpy: float


def measure_transpose(
    batch: int, *, rounds: int = 9, seconds: float = 0.02, clock: Callable[[], float] = perf_counter
) -> tuple[TransposeTime, ...]:
    """Change the layout of VGG16's activations by every algorithm, NumPy and a copy, in turn.

    The copy of a round is the faster one of two: the C library's on as many threads as OpenMP uses,
    and that of the native kernels. Raises InvalidArgument for numbers that are not positive.
    """
    if batch < 1 or rounds < 1 or not seconds > 0:
        raise InvalidArgument("batch, rounds, seconds: expected positive numbers")
    threads = openmp_threads()
    with ThreadPoolExecutor(threads) as pool:
        return tuple(
            time
            for channels, extent in ACTIVATIONS
            for turn in TURNS
            for time in _measure(
                batch, channels, extent, turn, rounds, seconds, clock, pool, threads
            )
        )


def _measure(
    batch: int,
    channels: int,
    extent: int,
    turn: str,
    rounds: int,
    seconds: float,
    clock: Callable[[], float],
    pool: ThreadPoolExecutor,
    threads: int,
) -> list[TransposeTime]:
    plane = (extent, extent)
    shape = (batch, channels, *plane) if turn == "to NHWC" else (batch, *plane, channels)
    axes = TURNS[turn]
    size = batch * channels * extent * extent
    memory = numpy.ones((2, size + 16), numpy.float32)
    flat, target = (row[-row.ctypes.data % 64 // 4 :][:size] for row in memory)
    x, out = flat.reshape(shape), target.reshape([shape[axis] for axis in axes])
    parts = [slice(size * i // threads, size * (i + 1) // threads) for i in range(threads)]
    runs: dict[str, Callable[[], object]] = {
        name: partial(kernels.transpose, x, axes, algorithm=name, out=out)
        for name in kernels.transpose_algorithms()
    }
    runs["numpy"] = lambda: numpy.copyto(out, x.transpose(axes))
    copies: dict[str, Callable[[], object]] = {
        "memcpy": lambda: list(
            pool.map(lambda part: numpy.copyto(target[part], flat[part]), parts)
        ),
        "kernels": lambda: kernels.transpose(x, (0, 1, 2, 3), out=target.reshape(shape)),
    }
    times: dict[str, list[float]] = {name: [] for name in (*runs, *copies)}
    for _ in range(rounds):
        for name, run in {**runs, **copies}.items():
            times[name].append(burst(run, seconds, clock))
    copy = [min(pair) for pair in zip(*(times[name] for name in copies), strict=True)]
    return [
        _time(shape, turn, name, times[name], copy, times["numpy"], 8.0 * size) for name in runs
    ]


def _time(
    shape: tuple[int, ...],
    turn: str,
    name: str,
    own: Sequence[float],
    copy: Sequence[float],
    by_numpy: Sequence[float],
    moved: float,
) -> TransposeTime:
    shares = [other / mine for other, mine in zip(copy, own, strict=True)]
    of_copy = Quartiles.of(shares)
    faster = median(other / mine for other, mine in zip(by_numpy, own, strict=True))
    seconds = median(own)
    return TransposeTime(
        shape, turn, name, seconds, moved / seconds, of_copy.middle, of_copy.spread, faster
    )
