"""What a treatment has gained on the program's own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bestof.selection.duration import duration

_LEAST_FACTOR = 1.05
"""Treatments that gain less are not told: steps on a busy machine differ by as much."""

_PLAIN_FACTOR = 2.0
"""So much is believed of one pair alone, where steps are so slow that there is no other."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Pairs of turns of the program, each without and with the treatment: seconds of a step."""

    pairs: Sequence[tuple[float, float]]

    @property
    def factor(self) -> float:
        """The time without the treatment over the time with it: the median of the pairs."""
        return median(without / treated for without, treated in self.pairs)

    @property
    def is_real(self) -> bool:
        """Whether all pairs agree that the treatment makes steps faster."""
        return self._is_always_faster and self.factor >= self._least

    @property
    def told(self) -> str:
        """The seconds of a step without and with the treatment, in words."""
        without, treated = (median(side) for side in zip(*self.pairs, strict=True))
        told = f"a step takes {duration(without)}, and {duration(treated)} with the cure"
        if self.factor >= self._least and not self._is_always_faster:
            told += ", which was not faster in each turn"
        return told

    @property
    def _is_always_faster(self) -> bool:
        return all(without > treated for without, treated in self.pairs)

    @property
    def _least(self) -> float:
        return _LEAST_FACTOR if len(self.pairs) > 1 else _PLAIN_FACTOR
