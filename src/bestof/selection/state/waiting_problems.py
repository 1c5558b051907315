"""Problems that wait for a search, because as many searches as allowed are under way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

# A waiting problem takes the place of a search once it has come back so many times while the search
# made no progress. Shapes that are all met equally often thus do not push each other out: of 512
# lengths drawn at random, a search sees no call while one other length comes back four times in 2 %
# of the cases.
_RETURNS = 4
_KEPT = 4  # waiting problems that are counted, for each search that is allowed


class Search(Protocol):
    """What this file reads of a `Tuning`."""

    @property
    def trials_begun(self) -> int:
        """The number of its trials so far."""


class _Waiting:
    """How often a waiting problem has come back; the times count calls of waiting problems."""

    __slots__ = ("last", "position", "returns", "since")

    def __init__(self, position: int, now: int) -> None:
        self.position = position
        self.since = self.last = now
        self.returns = 0


class WaitingProblems:
    """Counts the returns of waiting problems, and names the search that gives way to one.

    A program whose shapes never repeat would otherwise hold a search for each of them, and try
    alternatives for calls that never come again. Here at most `limit` searches are under way. Any
    other new problem waits: the first alternative answers it, without a trial, and nothing but a
    count is kept. A search that no longer makes progress gives way to a problem that keeps coming
    back.

    A return is a call at least `limit` waiting calls after the last counted one. A model that calls
    one problem in each of its layers thus returns to it about once a pass.

    Called with the lock of the selector held.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._now = 0
        self._waiting: dict[Hashable, _Waiting] = {}
        # By searched problem, the oldest observation first: its trials, and when it was seen.
        self._seen: dict[Hashable, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def position(self, problem: Hashable) -> int | None:
        """Return the alternative that answers a waiting problem; None if the problem is new."""
        known = self._waiting.get(problem)
        return None if known is None else known.position

    def add(self, problem: Hashable, position: int) -> None:
        """Let a problem wait from now on, answered by the alternative at this position."""
        if len(self._waiting) >= _KEPT * self._limit:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[problem] = _Waiting(position, self._now)

    def gives_way(self, problem: Hashable, searches: Mapping[Hashable, Search]) -> Hashable | None:
        """Count a call of a waiting problem. Return the searched problem that gives way, or None.

        `searches` are those under way.
        """
        self._now += 1
        mine = self._waiting[problem]
        if self._now - mine.last < self._limit:
            return None
        mine.last = self._now
        mine.returns += 1
        if mine.returns < _RETURNS:
            return None
        self._observe(searches)
        idle, (_, seen) = next(iter(self._seen.items()))
        if seen <= mine.since:
            return idle
        mine.since, mine.returns = self._now, 0
        return None

    def forget(self, problem: Hashable) -> None:
        """Forget a problem, because it does not wait any longer."""
        self._waiting.pop(problem, None)

    def _observe(self, searches: Mapping[Hashable, Search]) -> None:
        """Note which searches have made progress since they were seen last."""
        before, self._seen = self._seen, {}
        moved = {}
        for problem, search in searches.items():
            trials = search.trials_begun
            known = before.get(problem)
            if known is None or known[0] != trials:
                moved[problem] = (trials, self._now)
        for problem, known in before.items():
            if problem in searches and problem not in moved:
                self._seen[problem] = known
        self._seen.update(moved)
