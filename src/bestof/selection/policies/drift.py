"""Detect drift: has the winner of a settled problem become slower or faster than when it won?"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from bestof.selection.policies.argument import check_count, check_number

# Shorter times are raised to this. Reading the clock twice takes 0.1 us, and a quarter of such a
# short call is not worth a search.
_LEAST = 1e-6

_WINDOWS = 3  # full windows, which are searched for two populations
_ENOUGH = 15  # the least number of times in this search
_APART, _NARROW = 1.5, 1.25  # the least ratio between two populations, the largest within one


@dataclass(slots=True)
class Drift:
    """Compares sampled times of a winner with the time at which it won. Holds the state of one
    problem.

    The median of the last `window` times is compared with `baseline`, in seconds. The winner is
    slow if the median is above `rise` times the baseline. `tell` then returns True once. It can do
    so again after the median has been below `fall` times the baseline. A time near the threshold
    thus does not reopen the race again and again. The winner is fast if the median is below the
    baseline divided by `speedup`: the race ran on a busy machine. With infinity, this is never
    reported.

    If the last three windows come from two populations, such as two batch sizes that share one
    problem, `tell` returns True too, and `populations` holds the median of each. This is done for
    plain alternatives only.

    stages: for a group, each stage has its own window. The sum of their medians counts once all
        windows are full.
    rest: the number of first times to ignore.
    mixed: two populations were known when the winner won. Its median then says little, so only the
        populations are watched.

    It uses no clock: the same times give the same answers. After a reopened race is decided, a new
    Drift is made with the new winner's time.

    Raises InvalidArgument for arguments outside their range.
    """

    baseline: float
    rise: float = 1.25
    fall: float = 1.1
    speedup: float = (
        # Settled calls find warm caches. In a race, the other alternatives have used the caches.
        2.0
    )
    window: int = 9  # a burst of 4 slow samples does not move the median of 9
    stages: int = 1
    rest: int = 0
    mixed: bool = False
    # the sum of the medians of the last full windows
    now: float | None = field(default=None, init=False)
    populations: tuple[float, float] | None = field(default=None, init=False)
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
        """Take one sampled time. Return True once when the race should be run again."""
        if self.rest > 0:
            self.rest -= 1
            return False
        recent = self._recent[stage]
        recent.append(seconds)
        del recent[: -_WINDOWS * self.window]
        if min(map(len, self._recent)) < self.window:
            return False
        self.now = sum(_median(times[-self.window :]) for times in self._recent)
        if self.stages == 1 and len(recent) == _WINDOWS * self.window >= _ENOUGH:
            self.populations = two_populations(recent)
            if self.populations is not None:
                recent.clear()
                return True
        if self.mixed:
            return False
        ratio = max(self.now, _LEAST) / max(self.baseline, _LEAST)
        if self._gone:
            self._gone = not 1.0 / self.fall < ratio < self.fall
            return False
        self._gone = ratio > self.rise or ratio * self.speedup < 1.0
        return self._gone


def two_populations(times: list[float]) -> tuple[float, float] | None:
    """Return the medians of two groups of times that lie far apart, or None.

    Each group is narrow and holds at least a fifth of the times. The groups must alternate, because
    a burst of load comes in one piece.
    """
    ranked, least = sorted(times), max(2, len(times) // 5)
    ratios = [later / max(time, _LEAST) for time, later in pairwise(ranked)]
    place = max(range(least - 1, len(ranked) - least), key=ratios.__getitem__)
    low, high = ranked[: place + 1], ranked[place + 1 :]
    if ratios[place] < _APART or not (_is_narrow(low) and _is_narrow(high)):
        return None
    turns = sum((time > low[-1]) != (later > low[-1]) for time, later in pairwise(times))
    return (_median(low), _median(high)) if turns * 4 >= len(times) else None


def _is_narrow(ranked: list[float]) -> bool:
    tenth = len(ranked) // 10  # one late call in ten is noise
    return ranked[-1 - max(1, tenth)] <= _NARROW * max(ranked[tenth], _LEAST)


def _median(times: list[float]) -> float:
    # The statistics module takes 1 us more, which is a tenth of the cost of a sample.
    ranked, half = sorted(times), len(times) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
