"""Compare two ways to do a step by pairs of times that were measured in turn.

The times of a shared machine drift together. So each pair gives one ratio, and the judgement rests
on the order of the ratios alone: a few disturbed pairs do not move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

LEAST_PAIRS = 6
"""With fewer pairs, no interval of ratios holds the median with 95 %."""

MOST_PAIRS = 20
"""A candidate that is not confirmed after so many pairs is too close to matter."""

MARGIN = 1.01
"""A gain below 1 % is not worth a setting."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast the candidate is: the median of all pairs, and its interval.

    `low` to `high` holds the median with at least 95 %, whatever the distribution of the ratios
    (the order statistics of the sign test).
    """

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def speedup(ratios: Sequence[float]) -> Speedup | None:
    """Return the speed-up of pairs `standing seconds / candidate seconds`; None for too few."""
    if len(ratios) < LEAST_PAIRS:
        return None
    ordered = sorted(ratios)
    dropped = _dropped(len(ordered))
    return Speedup(median(ordered), ordered[dropped], ordered[-1 - dropped], len(ordered))


def judge(ratios: Sequence[float], most: int = MOST_PAIRS) -> bool | None:
    """Return whether the candidate is confirmed faster; None if more pairs are needed.

    A candidate that is still unclear after `most` pairs is not confirmed. The judgement is taken
    every third pair only, because each look may err.
    """
    if len(ratios) >= most:
        found = speedup(ratios)
        return found is not None and found.low > MARGIN
    found = speedup(ratios) if len(ratios) % 3 == 0 else None
    if found is None:
        return None
    if found.low > MARGIN:
        return True
    return False if found.high < MARGIN else None


def _dropped(count: int) -> int:
    """Return how many of the smallest, and of the largest, ratios the interval leaves out."""
    dropped, tail = 0, 2 ** -(count - 1)  # both tails together, with `dropped` + 1 coin tosses
    while True:
        tail += comb(count, dropped + 1) / 2 ** (count - 1)
        if tail > 0.05:
            return dropped
        dropped += 1
