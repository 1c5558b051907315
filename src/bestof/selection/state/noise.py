"""Find decisions that were made from noisy samples. The next run verifies these early."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bestof.selection.store.record import Evidence, settled_samples

_SPREAD = 0.25  # of the median: samples with a larger spread come from a busy machine
_FASTER = 0.9  # a rival is faster if its best is below this share of the best of the chosen one
# times the best of the chosen one: rivals within this factor may be faster in truth
_WITHIN_REACH = 2.0


def is_noisy(evidence: Sequence[Evidence], decision: str | None) -> bool:
    """Return whether another alternative may be faster than the chosen one, despite the decision.

    This is so if the best sample of a rival is clearly below the best of the chosen one. It is also
    so if the samples of either have a wide spread, and the rival's best is less than twice the
    chosen one's. A slow first call is ignored, but not if there is one call beside it: of two calls
    that differ, nobody knows which one tells.
    """
    samples = {
        one.alternative: settled_samples(one.samples)
        for one in evidence
        if one.samples and one.disqualified is None
    }
    chosen = samples.pop(decision, None) if decision is not None else None
    if not chosen:
        return False
    if samples and _are_two_unlike(evidence, decision):
        return True
    fastest = min(chosen)
    for rival in samples.values():
        if min(rival) < _FASTER * fastest:
            return True
        if min(rival) < _WITHIN_REACH * fastest:
            for times in (chosen, rival):
                if len(times) > 1 and spread(times) > _SPREAD * median(times):
                    return True
    return False


def _are_two_unlike(evidence: Sequence[Evidence], decision: str | None) -> bool:
    times = next(one.samples for one in evidence if one.alternative == decision)
    return len(times) == 2 and spread(times) > _SPREAD * median(times)


def spread(samples: Sequence[float]) -> float:
    """Return half the distance between the quartiles of at least two times, in seconds."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return (median(ordered[-half:]) - median(ordered[:half])) / 2
