"""Chooses the setting to try next: hill climbing over the number of workers.

Workers take processors from the computing threads. So every number of workers is tried twice: with
the present number of threads, and with as many threads as processors are left. The search uses no
clock. It asks for a setting and is told the cost of a sample, so it can be replayed from recorded
times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from bestof.torch.process.data_loading.setting import Setting

GAIN = 0.97
"""A setting replaces another one if its cost is below this part of the other's cost. Unless the
machine is shared, trials of equal settings differ by at most 3 %."""

SURE = 0.50
"""If the best setting costs less than this part of the own setting, it needs no second trial. The
first trial, that of the own setting, is slow: files are read for the first time."""

PREFETCH = 2
"""PyTorch's default prefetch factor."""

Search = Generator[Setting, float, Setting]


class HillClimbing:
    """The search over settings. Call `ask` and `tell` in turn until `ask` returns None.

    own: the setting that the loader had; it is tried first.
    processors: the number that workers and threads share.
    most, least: the highest and the lowest number of workers.
    second: whether close results are measured again before one is chosen.

    `best` is then the result. An infinite cost means that a setting failed.
    """

    def __init__(
        self, own: Setting, processors: int, most: int, *, least: int = 0, second: bool = True
    ) -> None:
        self.own = own
        self.best = own
        self.costs: dict[Setting, float] = {}
        self._least = least
        self._search = self._climb(processors, most, second)
        self._next: Setting | None = next(self._search)

    def ask(self) -> Setting | None:
        return self._next

    def tell(self, cost: float) -> None:
        """Take the cost of a sample with the setting that was asked for."""
        asked = self._next
        assert asked is not None
        # Noise only adds to a time, so the faster of two trials counts.
        self.costs[asked] = min(cost, self.costs.get(asked, float("inf")))
        if self.costs[asked] < self.costs.get(self.best, float("inf")):
            self.best = asked
        try:
            self._next = self._search.send(cost)
        except StopIteration as end:
            self._next, self.best = None, end.value

    def stop(self) -> None:
        """End the search.

        The result is the best setting so far, if it beats the own one by more than noise.
        """
        if self._next is not None:
            self._next = None
            self.best = self._final()

    def _final(self) -> Setting:
        least = min(self.costs, key=self.costs.__getitem__, default=self.own)
        own = self.costs.get(self.own, float("inf"))
        return least if self.costs.get(least, own) < own * GAIN else self.own

    def _climb(self, processors: int, most: int, second: bool) -> Search:
        def best() -> Setting:
            return min(self.costs, key=self.costs.__getitem__)

        yield self.own
        for ladder in (_up(self.own.workers, most), _down(self.own.workers, most)):
            yield from self._along(ladder, processors)
        # Try the numbers between the best number of workers and its tried neighbours.
        while middle := _middles(best().workers, {one.workers for one in self.costs}, most):
            leader = best()
            yield from self._along(middle, processors)
            if best() == leader:
                break
        while best().workers:
            deeper = replace(best(), prefetch=2 * (best().prefetch or PREFETCH))
            if deeper in self.costs or (deeper.prefetch or 0) > 8:
                break
            before = self.costs[best()]
            yield deeper
            if self.costs[deeper] >= before * GAIN:
                break
        leader = best()
        if second and best() != self.own and self.costs[best()] > self.costs[self.own] * SURE:
            yield self.own
            yield leader
        return self._final()

    def _along(self, ladder: list[int], processors: int) -> Search:
        """Try numbers of workers in this order, until two in a row bring no gain."""
        lost = 0
        for workers in ladder:
            if workers < self._least:
                continue
            before = min(self.costs.values())
            reached = float("inf")
            for setting in self._with(workers, processors):
                if setting not in self.costs:
                    reached = min(reached, (yield setting))
            lost = 0 if reached < before * GAIN else lost + 1
            if lost == 2:
                break
        return self.own

    def _with(self, workers: int, processors: int) -> list[Setting]:
        prefetch = None if workers == 0 else self.own.prefetch or PREFETCH
        threads = {self.own.threads, max(1, min(self.own.threads, processors - workers))}
        return [Setting(workers, prefetch, count) for count in sorted(threads, reverse=True)]


def _up(own: int, most: int) -> list[int]:
    found, workers = [], max(1, own * 2)
    while workers < most:
        found.append(workers)
        workers *= 2
    return [*found, most] if own < most else []


def _down(own: int, most: int) -> list[int]:
    found, workers = [], own // 2
    while workers > 0:
        found.append(min(workers, most))
        workers //= 2
    return [*dict.fromkeys(found), 0] if own else []


def _middles(workers: int, tried: set[int], most: int) -> list[int]:
    """Return the numbers half way to the nearest tried neighbours, if there are any between.

    The own number of workers may be above `most`; no other number is.
    """
    found = []
    for pick, side in _SIDES:
        neighbours = [one for one in tried if side(one, workers)]
        if neighbours and abs(pick(neighbours) - workers) > 1:
            found.append((pick(neighbours) + workers) // 2)
    return [one for one in found if one not in tried and one <= most]


_SIDES: tuple[tuple[Callable[[list[int]], int], Callable[[int, int], bool]], ...] = (
    (max, int.__lt__),
    (min, int.__gt__),
)
