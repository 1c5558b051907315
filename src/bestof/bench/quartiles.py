"""The middle of some numbers, and the quartiles around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The median, and the quartiles around it."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Return the quartiles of at least one value."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        return cls(*quantiles(values, n=4, method="inclusive"))

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles."""
        return (self.high - self.low) / 2


def spread(values: Sequence[float]) -> float | None:
    """Return half the distance between the quartiles; None for fewer than two values."""
    return Quartiles.of(values).spread if len(values) > 1 else None
