"""Was a decision made from noisy samples? Then it is marked, and the next run verifies it early."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bestof.selection.record import Evidence

_SPREAD = 0.25  # of the median: samples that differ by more were taken on a busy machine
_FASTER = 0.9  # a rival that was once as fast as this share of the chosen one's best
_WITHIN_REACH = 2.0  # times the chosen one's best: what noise may hide
_SLOW_FIRST = 1.5  # times the fastest: a first call that compiled something


def is_noisy(evidence: Sequence[Evidence], decision: str | None) -> bool:
    """Return whether the samples leave it open that another alternative is faster than the chosen
    one.

    That is so if a rival was once clearly faster than the chosen one ever was, or if samples of
    either spread widely and the rival's best is less than twice the chosen one's. A slow first call
    is set aside.
    """
    samples = {
        one.alternative: settled_samples(one.samples)
        for one in evidence
        if one.samples and one.disqualified is None
    }
    chosen = samples.pop(decision, None) if decision is not None else None
    if not chosen:
        return False
    fastest = min(chosen)
    for rival in samples.values():
        if min(rival) < _FASTER * fastest:
            return True
        if min(rival) < _WITHIN_REACH * fastest:
            for times in (chosen, rival):
                width = spread(times)
                if width is not None and width > _SPREAD * median(times):
                    return True
    return False


def settled_samples(samples: Sequence[float]) -> Sequence[float]:
    """Return the samples without a slow first one."""
    slow = len(samples) > 1 and samples[0] > _SLOW_FIRST * min(samples)
    return samples[1:] if slow else samples


def spread(samples: Sequence[float]) -> float | None:
    """Return half the distance between the quartiles, in seconds; None for fewer than two
    samples."""
    if len(samples) < 2:
        return None
    ordered = sorted(samples)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2
