"""Times a function alone: hot, always on the same memory, and cold, on memory outside the
caches."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

# All buffers of a cold run together are this many times the last-level cache.
_ROTATED = 2.0
_MOST_SETS = 64
_MOST_BYTES = 2 << 30
_FALLBACK_CACHE = 32 << 20


@dataclass(frozen=True, slots=True)
class Times:
    """The least seconds of a call, hot and cold.

    `cold` is None if one set of buffers was too large to rotate.
    """

    hot: float
    cold: float | None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Disturbances of a measurement: the processor share of other processes, and page faults a
    call."""

    others: float
    faults: float


def times_of(bind: Callable[[], Callable[[], None]], bytes_: int, seconds: float) -> Times:
    """Time a function that `bind` binds to new buffers of `bytes_`, for about `seconds`.

    One half of the time is hot, the other cold. The least time is used, because disturbances only
    make calls slower.
    """
    first = bind()
    first()  # this touches pages and loads code
    hot = least([first], seconds / 2)
    wanted = int(_ROTATED * last_level_cache() / max(bytes_, 1)) + 2
    sets = min(wanted, _MOST_SETS, max(1, _MOST_BYTES // max(bytes_, 1)))
    # Too few sets would stay in the caches.
    if sets < min(wanted, 2):
        return Times(hot, None)
    runs = [first, *(bind() for _ in range(sets - 1))]
    for run in runs[1:]:
        run()
    return Times(hot, least(runs, seconds / 2))


def least(runs: list[Callable[[], None]], seconds: float) -> float:
    """Return the least time of a call. Each run is called at least twice, unless that takes too
    long."""
    least, ends, turn = float("inf"), perf_counter() + seconds, 0
    while True:
        run = runs[turn % len(runs)]
        began = perf_counter()
        run()
        ended = perf_counter()
        least = min(least, ended - began)
        turn += 1
        if ended >= ends and (turn >= 3 or ended >= ends + 4 * seconds):
            return least


@cache
def last_level_cache() -> int:
    """Return the bytes of the last-level cache, or 32 MiB if the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdecimal():
            sizes.append(int(digits) * factor)
    return max(sizes, default=_FALLBACK_CACHE)


class Watch:
    """Observes other processes and page faults from its creation to `read`."""

    def __init__(self) -> None:
        self._before = _state()

    def read(self, calls: int) -> Disturbance:
        """Return what happened since the creation, over `calls` calls."""
        (busy, total, own, faults), after = self._before, _state()
        passed = max(after[1] - total, 1e-9)
        others = (after[0] - busy) - (after[2] - own)
        return Disturbance(max(0.0, others / passed), (after[3] - faults) / max(calls, 1))


def _state() -> tuple[float, float, float, int]:
    """Return the busy and the elapsed seconds of all processors, and this process's, with page
    faults."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(one) / 100 for one in file.readline().split()[1:9]]
    idle = fields[3] + fields[4]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (
        sum(fields) - idle,
        sum(fields),
        usage.ru_utime + usage.ru_stime,
        usage.ru_minflt + usage.ru_majflt,
    )
