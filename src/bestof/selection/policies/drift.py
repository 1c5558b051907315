"""Has the winner of a settled problem left the time at which it won? A small state that is told sampled times."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from bestof.selection.policies.argument import check_count, check_number

# Shorter times are taken for this: reading the clock twice takes 0.1 us, and of such calls nobody loses a quarter.
_LEAST = 1e-6


@dataclass(slots=True)
class Drift:
    """Compares the median of the last `window` sampled times with `baseline`, the seconds at which the winner won.

    Above `rise` times the baseline it is slow, and says so once; it must fall below `fall` times the baseline again
    before it can say so a second time, so that a time at the threshold does not reopen a race again and again. Below
    the baseline over `speedup` it was measured while the machine was busy, and says so as well; infinity: never.
    `stages`: of a group each stage has a window of its own, and the sum of their medians counts once all are full.
    `rest`: so many times are passed over first. Knows no clock: replaying the same times gives the same answers. After
    a race was reopened and decided, a new Drift is made from the new winner's time.
    Raises InvalidArgument for arguments outside their range.
    """

    baseline: float
    rise: float = 1.25
    fall: float = 1.1
    speedup: float = (
        2.0  # a settled call finds its caches warm; in a race the others had them in between
    )
    window: int = 9  # a neighbour's burst of 4 slow samples does not move their median
    stages: int = 1
    rest: int = 0
    now: float | None = field(default=None, init=False)  # the time of the last full windows
    _recent: list[list[float]] = field(init=False, repr=False)
    _gone: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("Drift", "baseline", self.baseline, 0.0, inf)
        check_number("Drift", "fall", self.fall, 1.0)
        check_number("Drift", "rise", self.rise, self.fall)
        check_number("Drift", "speedup", self.speedup, self.fall)
        check_count("Drift", "window", self.window, 1)
        check_count("Drift", "stages", self.stages, 1)
        check_count("Drift", "rest", self.rest, 0)
        self._recent = [[] for _ in range(self.stages)]

    def tell(self, seconds: float, stage: int = 0) -> bool:
        """Take one sampled time; True once, when the winner is elsewhere and the race should be run again."""
        if self.rest > 0:
            self.rest -= 1
            return False
        self._recent[stage].append(seconds)
        del self._recent[stage][: -self.window]
        if min(map(len, self._recent)) < self.window:
            return False
        self.now = sum(map(_median, self._recent))
        ratio = max(self.now, _LEAST) / max(self.baseline, _LEAST)
        if self._gone:
            self._gone = not 1.0 / self.fall < ratio < self.fall
            return False
        self._gone = ratio > self.rise or ratio * self.speedup < 1.0
        return self._gone


def _median(times: list[float]) -> float:
    # That of the statistics module takes 1 us more, a tenth of what a sample costs.
    ranked, half = sorted(times), len(times) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
