"""Compare ways to do one thing: ratios, in one process, in turn."""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping


def add_clock(parser: ArgumentParser) -> None:
    """Add the option that `print_ratios` takes as `cpu_time`."""
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the time of the processor, of all threads"
    )


def print_ratios(ways: Mapping[str, Callable[[], object]], rounds: int, *, cpu_time: bool) -> None:
    """Call every way once in each round; print its times and their ratios to those of `native`."""
    clock = time.process_time if cpu_time else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = clock()
            way()
            times[name].append(clock() - begin)
    for name, taken in times.items():
        low, middle, high = (1e3 * f(taken) for f in (min, statistics.median, max))
        ratio = statistics.median(t / n for t, n in zip(taken, times["native"], strict=True))
        print(f"{name:10} {middle:8.1f} ms ({low:.1f} to {high:.1f})   {ratio:6.2f} times native")
