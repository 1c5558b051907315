"""Times one function for a while."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median


def burst(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Return the median seconds of calls for so long, after one call that does not count."""
    run()
    times: list[float] = []
    begin = clock()
    while not times or clock() - begin < seconds:
        started = clock()
        run()
        times.append(clock() - started)
    return median(times)
