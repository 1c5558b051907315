"""The account of live checks: settled results that are compared again take 1 % of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

SHARE = 0.01  # of the time since the account was opened

_LONGEST = 30.0  # seconds between two comparisons of one item, if the account allows it
_REMEMBERED = 4096  # items


class LiveChecks:
    """Says when a settled result is compared again, within a share of the time of the run.

    The process has one account. An item is whatever is compared by itself: a stage of a problem, or
    a C++ kernel. A new item is compared as soon as the account allows it. Then items take turns: in
    one round, each of them is compared once. A round takes so long that its comparisons have their
    share of the time, but at most half a minute. If there are so many items that they cannot all be
    compared in that time, the account decides.

    Threads may lose one another's entries, which costs one comparison.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, *, share: float = SHARE
    ) -> None:
        self.is_on = True
        self.clock = clock
        self.spent = 0.0  # seconds
        self.compared = 0
        self._share = share
        self._began = clock()
        self._last: dict[Hashable, tuple[float, float]] = {}  # when it was compared; the cost
        self._round = 0.0  # the cost of one comparison of each item

    @property
    def seconds(self) -> float:
        """The seconds since the account was opened."""
        return self.clock() - self._began

    def is_due(self, item: Hashable, guess: float = 0.0) -> bool:
        """Return whether the next result of an item is compared.

        guess: what the first comparison may cost, in seconds.
        """
        if not self.is_on:
            return False
        seconds = self.seconds
        last = self._last.get(item)
        if self.spent + (guess if last is None else last[1]) > self._share * seconds:
            return False
        return last is None or seconds - last[0] >= min(self._round / self._share, _LONGEST)

    def book(self, item: Hashable, cost: float) -> None:
        """Note that an item was compared, and what that cost in seconds."""
        if item not in self._last and len(self._last) >= _REMEMBERED:
            self._last.clear()
            self._round = 0.0
        self._round += cost - self._last.get(item, (0.0, 0.0))[1]
        self._last[item] = self.seconds, cost
        self.spent += cost
        self.compared += 1
