"""Compares two ways to run, in turn."""

from __future__ import annotations

from collections.abc import Callable

from bestof.selection.policies.paired import judge


def ratios_in_turn(before: Callable[[], float], after: Callable[[], float]) -> list[float]:
    """Call both in turn until `judge` knows which is faster. Return the ratios before / after.

    before, after: run for a turn, and return the seconds of a step. Their order changes from pair
    to pair, so that a drift favours neither.
    """
    ratios: list[float] = []
    while judge(ratios) is None:
        if len(ratios) % 2 == 0:
            first = before()
            second = after()
        else:
            second = after()
            first = before()
        ratios.append(first / second)
    return ratios
