"""Compute how many settled calls of a problem lie between two that are timed.

A sample costs about as much as a trial: 3 to 13 us in addition to its call. Samples lie 20 ms of
calls apart, so that they take less than 0.1 % of the time. A window of nine samples then also
outlasts a burst of load from a neighbour. If calls are long, 16 calls lie between two samples.
"""

from __future__ import annotations

from math import inf

from bestof.selection.passes import WHILE_SAMPLED

FIRST = 16  # the first settled call that is timed

_APART = 0.02  # seconds of calls
_LEAST = 16
_SHORTEST = 1e-7  # seconds; a settled call takes longer, even if a coarse clock shows less


def calls_between(seconds: float, calls: int) -> int:
    """Return the number of calls until the next sample.

    `seconds` is the time of the last sample, and `calls` the number of the call.

    The result lies between half and one and a half times the aim, spread by the golden ratio. Some
    problems have calls that alternate, such as the stages of a group, or layers of one shape. A
    fixed number would always time the same one.
    """
    if not 0.0 <= seconds < inf:
        return WHILE_SAMPLED
    aim = max(_LEAST, int(_APART / max(seconds, _SHORTEST)))
    return aim // 2 + ((calls * 0x9E3779B1 % 2**32) * aim >> 32)
