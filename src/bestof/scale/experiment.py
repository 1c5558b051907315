"""What the searches of `bestof scale` share: time, memory, and comparisons of two runs in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from operator import itemgetter
from time import monotonic
from typing import Protocol, TypeVar

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.split import Split
from bestof.selection.policies.paired import judge

PARTS = 4
"""A candidate gets this part of the time that is left, or an equal one if fewer are left."""

CLOSE = 1.1
"""Candidates within 10 % of the best one are compared with it in turn."""

NOT_TRIED = "not tried"
"""How the reason begins if a candidate was refused before it ran."""


class Running(Protocol):
    """A candidate that runs in processes of its own."""

    def close(self) -> None:
        """End them."""


class Measured(Protocol):
    """A candidate that was measured alone. memory: the most bytes of one of its processes."""

    split: Split
    memory: int | None


C = TypeVar("C")
M = TypeVar("M", bound=Measured)
R = TypeVar("R", bound=Running)


class Experiment:
    """Measures candidates, one after the other, and compares those that come close in turn.

    available: returns the bytes that processes may still allocate, or None. deadline: in seconds of
    `clock`. tell: gets a line for each candidate.
    """

    def __init__(
        self,
        available: Callable[[], int | None],
        *,
        deadline: float,
        tell: Callable[[str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._available = available
        self._deadline = deadline
        self._tell = tell
        self._clock = clock

    def _share(self, left: int) -> float:
        """Return when the share of a candidate ends, if `left` of them have none yet."""
        now = self._clock()
        return now + (self._deadline - now) / min(PARTS, left)

    def _check_time(self, until: float) -> None:
        """Raise OutOfTime if it is later than `until`."""
        if self._clock() >= until:
            raise OutOfTime("the time is up")

    def _check_room(self, needed: int) -> None:
        """Raise ScriptFailed if `needed` bytes are not free."""
        check_room(needed, self._available())

    def _in_turn(
        self,
        candidates: tuple[C, C],
        needed: int,
        make: Callable[[C], R],
        turn: Callable[[C, R], float],
    ) -> list[float]:
        """Run two candidates in turn until `judge` knows which is faster.

        Return the ratios of the seconds of the first over those of the second. Their order changes
        from pair to pair, so that a drift favours neither. needed: the bytes of both.
        """
        self._check_room(needed)
        ratios: list[float] = []
        with ExitStack() as stack:
            running = [stack.enter_context(closing(make(one))) for one in candidates]
            while judge(ratios) is None:
                seconds = [0.0, 0.0]
                for place in (0, 1) if len(ratios) % 2 == 0 else (1, 0):
                    seconds[place] = turn(candidates[place], running[place])
                ratios.append(seconds[0] / seconds[1])
        return ratios

    def _fastest(
        self,
        costs: Sequence[tuple[float, M]],
        make: Callable[[M], R],
        turn: Callable[[M, R], float],
    ) -> M | None:
        """Return the candidate that costs least; in turn, those that come close may be faster."""
        if not costs:
            return None
        ranked = sorted(costs, key=itemgetter(0))
        cost, best = ranked[0]
        for other, one in ranked[1:]:
            if other <= CLOSE * cost and self._is_faster(one, best, make, turn):
                cost, best = other, one
        return best

    def _is_faster(
        self, one: M, standing: M, make: Callable[[M], R], turn: Callable[[M, R], float]
    ) -> bool:
        """Return whether a candidate is faster in turn; False if that cannot be found out."""
        needed = sum(len(each.split.ranks) * (each.memory or 0) for each in (standing, one))
        try:
            return bool(judge(self._in_turn((standing, one), needed, make, turn)))
        except (ScriptFailed, OutOfTime):
            return False


def check_room(needed: int, free: int | None) -> None:
    """Raise ScriptFailed if `needed` bytes are more than `free`; None stands for unknown."""
    if free is not None and needed > free:
        raise ScriptFailed(
            f"{NOT_TRIED}: it needs about {needed / 2**20:,.0f} MiB, "
            f"and {free / 2**20:,.0f} MiB are free"
        )
