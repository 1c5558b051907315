"""The times of all alternatives of a convolution, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlternativeTime:
    """One alternative.

    `seconds` is the median a call, `spread` half the distance between the quartiles, `ratio` how
    many times faster than PyTorch's own kernel. All are None if the alternative does not apply, or
    failed for that `reason`.
    """

    name: str
    chosen: bool
    seconds: float | None = None
    spread: float | None = None
    ratio: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PassTimes:
    """One pass of one convolution: `problem` as reports write it, `flops` of a call, its
    alternatives.
    """

    name: str
    problem: str
    threads: int
    flops: int
    alternatives: tuple[AlternativeTime, ...]
