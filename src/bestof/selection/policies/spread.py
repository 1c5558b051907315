"""How far times of one alternative lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def spread(samples: Sequence[float]) -> float:
    """Return half the distance between the quartiles of at least two times, in seconds."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2
