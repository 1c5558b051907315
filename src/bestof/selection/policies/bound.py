"""How far apart the times of two alternatives must lie before chance stops being an explanation."""

from __future__ import annotations

from functools import lru_cache
from math import comb

# How heavy the noise is taken to be: a call is slowed to more than 1 + x times by anything but its
# alternative with a probability P of at most min(1/2, SLACK / x). Over the recorded traces x * P
# averages 0.03 for x up to 1/2, at most 0.05; it grows to 0.09 in the worst trace for x = 1 and on
# from there, since preemption takes whole time slices, whatever x is: a policy needs something else
# against calls that are late by several times.
SLACK = 0.05


def tail(trials: int, least: int, probability: float) -> float:
    """The probability that at least `least` of `trials` events happen, each with this
    probability."""
    return sum(
        comb(trials, hits) * probability**hits * (1.0 - probability) ** (trials - hits)
        for hits in range(least, trials + 1)
    )


@lru_cache(maxsize=1024)
def margins(trials: int, confidence: float) -> tuple[float, ...]:
    """Factors f[0], f[1], ...: all but k of `trials` ratios exceed f[k] by chance with at most 1 -
    `confidence`.

    Order statistics: under "not slower" a ratio exceeds 1 + x with probability at most q = min(1/2,
    SLACK / x), so all but k do with probability at most tail(trials, trials - k, q); f[k] is the
    smallest 1 + x that makes this rare enough. Where even q = 1/2 is rare enough (the sign test: 7
    trials at 0.99) the factor is 1.
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
    """How many of `trials` ratios may lie on the far side while the sign test still holds; None
    where none may."""
    certain = [k for k, factor in enumerate(margins(trials, confidence)) if factor == 1.0]
    return certain[-1] if certain else None
