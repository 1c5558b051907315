"""A race that was run again, because the winner had become slower or faster."""

from __future__ import annotations

from dataclasses import dataclass

from bestof.selection.duration import duration


@dataclass(frozen=True, slots=True)
class EarlierRace:
    """The result of an earlier race, and why the race was reopened.

    `alternative` won with a median of `before` seconds. Its sampled median was `after` when the
    race was reopened. `populations` holds the medians of two kinds of calls, if these share the
    problem and caused the reopening.
    """

    alternative: str
    before: float
    after: float
    populations: tuple[float, float] | None = None

    @property
    def faster(self) -> bool:
        """Whether the winner had become faster, as its race ran on a busy machine."""
        return self.after < self.before

    def __str__(self) -> str:
        if self.populations is not None:
            low, high = map(duration, self.populations)
            return (
                f"calls of {self.alternative} took either {low} or {high}: two kinds of calls "
                "share this problem; the race was reopened; let get_problem_size tell them apart"
            )
        change = "faster" if self.faster else "slower"
        return (
            f"{self.alternative} had become {change}, {duration(self.after)} against the "
            f"{duration(self.before)} at which it won; the race was reopened"
        )
