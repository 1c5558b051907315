"""Has the winner of a settled problem become slower? A small state that is told sampled times."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from bestof.selection.policies.argument import check_count, check_number


@dataclass(slots=True)
class Drift:
    """Compares the median of the last `window` sampled times with `baseline`, the seconds at which the winner won.

    Two thresholds: above `rise` times the baseline it is slow, and says so once; it must fall below `fall` times the
    baseline again before it can say so a second time, so that a time at the threshold does not reopen a race again and
    again. Knows no clock: replaying the same times gives the same answers. After a race was reopened and decided, a new
    Drift is made from the new winner's time. Raises InvalidArgument for arguments outside their range.
    """

    baseline: float
    rise: float = 1.25
    fall: float = 1.1
    window: int = 9  # a neighbour's burst of 4 slow samples does not move their median
    _recent: list[float] = field(default_factory=list, init=False, repr=False)
    _slow: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("Drift", "baseline", self.baseline, 0.0, float("inf"))
        check_number("Drift", "fall", self.fall, 1.0)
        check_number("Drift", "rise", self.rise, self.fall)
        check_count("Drift", "window", self.window, 1)

    def tell(self, seconds: float) -> bool:
        """Take one sampled time; True once, when the winner has become slow and the race should be run again."""
        recent = self._recent
        recent.append(seconds)
        if len(recent) < self.window:
            return False
        del recent[: -self.window]
        now = median(recent)
        if self._slow:
            self._slow = now >= self.fall * self.baseline
            return False
        self._slow = now > self.rise * self.baseline
        return self._slow
