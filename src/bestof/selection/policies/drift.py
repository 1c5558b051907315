"""Has the winner of a settled problem left the time at which it won? A small state that is told
sampled times."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from bestof.selection.policies.argument import check_count, check_number

# Shorter times are taken for this: reading the clock twice takes 0.1 us, and of such calls nobody
# loses a quarter.
_LEAST = 1e-6

_WINDOWS = 3  # full windows, in which two populations show
_ENOUGH = 15  # times at least
_APART, _NARROW = 1.5, 1.25  # the ratio between two populations, and within one


@dataclass(slots=True)
class Drift:
    """Compares the median of the last `window` sampled times with `baseline`, the seconds at which
    the winner won.

    Above `rise` times the baseline it is slow, and says so once; it must fall below `fall` times
    the baseline again before it can say so a second time, so that a time at the threshold does not
    reopen a race again and again. Below the baseline over `speedup` it was measured while the
    machine was busy, and says so as well; infinity: never.
    `stages`: of a group each stage has a window of its own, and the sum of their medians counts
    once all are full. If the last three windows of a plain alternative come from two populations,
    such as two batch sizes that share one problem, it says so as well, and `populations` holds the
    median of each. `mixed`: this was known when the winner won; its median says little then, and
    only the populations are watched.
    `rest`: so many times are passed over first. Knows no clock: replaying the same times gives the
    same answers. After a race was reopened and decided, a new Drift is made from the new winner's
    time. Raises InvalidArgument for arguments outside their range.
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
    mixed: bool = False
    now: float | None = field(default=None, init=False)  # the time of the last full windows
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
        """Take one sampled time; True once, when the winner is elsewhere and the race should be run
        again."""
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
    """Return the medians of two groups of times that lie far apart; None if there are no two.

    Each group is narrow and holds a fifth of the times or more, and they take turns: a burst comes
    in one piece.
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
    tenth = len(ranked) // 10  # a late call in ten is noise
    return ranked[-1 - max(1, tenth)] <= _NARROW * max(ranked[tenth], _LEAST)


def _median(times: list[float]) -> float:
    # That of the statistics module takes 1 us more, a tenth of what a sample costs.
    ranked, half = sorted(times), len(times) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
