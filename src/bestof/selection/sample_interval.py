"""How many settled calls of a problem lie between two that are timed.

A sample costs about as much as a trial, 3 to 13 us beyond its call. So that these stay below 0.1 %
of the time of the calls, and so that a window of nine samples outlasts a neighbour's burst, samples
lie 20 ms of calls apart, or 16 calls where these are long.
"""

from __future__ import annotations

from math import inf

FIRST = 16  # the call that is sampled first

_APART = 0.02  # seconds of calls
_LEAST = 16
_SHORTEST = 1e-7  # seconds; no settled call is shorter, whatever a coarse clock says
_UNKNOWN = 1024  # calls; where one raised, or the clock went backwards


def calls_between(seconds: float, calls: int) -> int:
    """How many calls after one that took `seconds`, and was the problem's `calls`-th, to sample the
    next.

    Between half and one and a half times the aim, spread by the golden ratio: a problem whose calls
    take turns, as the stages of a group and layers of one shape do, would be met at the same turn
    each time by any fixed number.
    """
    if not 0.0 <= seconds < inf:
        return _UNKNOWN
    aim = max(_LEAST, int(_APART / max(seconds, _SHORTEST)))
    return aim // 2 + ((calls * 0x9E3779B1 % 2**32) * aim >> 32)
