"""A figure that was promised, beside the one that was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """One promise. `reach` is the figure to reach, `reached` the measured one.

    `low` and `high` are its quartiles, or the extremes of the layers that a median is taken over;
    None if the figure is made of medians. `most`: the figure is to be at most the reach, not at
    least.
    """

    what: str
    reach: float
    reached: float
    low: float | None = None
    high: float | None = None
    most: bool = False

    @property
    def met(self) -> bool:
        """Whether the promise holds; NaN does not."""
        return self.reached <= self.reach if self.most else self.reached >= self.reach
