"""Bound what noise can do: how far apart must two alternatives be, so that chance is ruled out?"""

from __future__ import annotations

from functools import lru_cache
from math import comb

# The model of noise: with probability P <= min(1/2, SLACK / x), something other than its
# alternative makes a call take more than 1 + x times as long. Over the recorded traces, x * P
# averages 0.03 for x up to 1/2, and is at most 0.05. In the worst trace it is 0.09 at x = 1 and
# grows from there, because preemption takes whole time slices. So this model does not cover calls
# that are late by several times. A policy needs another rule for these.
SLACK = 0.05


def tail(trials: int, least: int, probability: float) -> float:
    """Return the probability that at least `least` of `trials` independent events happen.

    Each event has the given probability.
    """
    return sum(
        comb(trials, hits) * probability**hits * (1.0 - probability) ** (trials - hits)
        for hits in range(least, trials + 1)
    )


@lru_cache(maxsize=1024)
def margins(trials: int, confidence: float) -> tuple[float, ...]:
    """Return factors f[0], f[1], ... for a test of "slower" with k exceptions.

    Assume that an alternative is not slower than another. Then all but k of `trials` ratios of
    their times exceed f[k] with a probability of at most 1 - `confidence`.

    Derivation by order statistics: a ratio exceeds 1 + x with probability at most q = min(1/2,
    SLACK / x). So all but k ratios do with probability at most tail(trials, trials - k, q). f[k] is
    the smallest 1 + x for which this is rare enough. If q = 1/2 is rare enough (the sign test: 7
    trials at 0.99), the factor is 1.
    """
    factors = []
    for exceptions in range((trials + 1) // 2):
        if tail(trials, trials - exceptions, 0.5) <= 1.0 - confidence:
            factors.append(1.0)
            continue
        low, high = 0.0, 0.5
        for _ in range(40):
            middle = (low + high) / 2
            if tail(trials, trials - exceptions, middle) <= 1.0 - confidence:
                low = middle
            else:
                high = middle
        factors.append(1.0 + SLACK / low)
    return tuple(factors)


@lru_cache(maxsize=1024)
def spare(trials: int, confidence: float) -> int | None:
    """Return how many of `trials` ratios may contradict the rest while the sign test still holds.

    None: the sign test does not hold even if all agree.
    """
    certain = [k for k, factor in enumerate(margins(trials, confidence)) if factor == 1.0]
    return certain[-1] if certain else None
