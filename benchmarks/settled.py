"""Run steps until `enable` has chosen for all of their calls."""

from __future__ import annotations

from collections.abc import Callable

import bestof.torch as bt

# This many steps without a trial mean that nothing is searched any more.
_QUIET = 5


def settle(step: Callable[[], object], most: int) -> int:
    """Run up to `most` steps, and return how many. They end after five in a row without a trial."""
    trials, quiet = -1, 0
    for number in range(1, most + 1):
        step()
        now = bt.summary().trials
        quiet = quiet + 1 if now == trials else 0
        trials = now
        if quiet == _QUIET:
            return number
    return most
