"""How far times of one alternative lie apart, and whether the machine looks busy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

# Times that spread by more than this share of their median are those of a busy machine. Beside a
# neighbour that makes calls late in every other second, two simulated races of 8 rounds decided
# differently in 18 % of cases by medians, and in 5 % by least times (`benchmarks/flips.py`).
_BUSY = 0.1
_FEWEST = 8  # times of an alternative: quartiles of fewer say little


def spread(samples: Sequence[float]) -> float:
    """Return half the distance between the quartiles of at least two times, in seconds."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2


def is_busy(alternatives: Iterable[Sequence[float]]) -> bool:
    """Return whether the times of each alternative spread as on a busy machine.

    If those of some spread alone, it is these that are late at times, and not the machine.
    """
    return all(
        len(times) >= _FEWEST and spread(times) > _BUSY * median(times) for times in alternatives
    )


def least(times: Sequence[float]) -> float:
    """Return the mean of the two least times, which late calls do not change."""
    return sum(sorted(times)[:2]) / 2
