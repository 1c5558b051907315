"""How long one row of an operation took, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowTime:
    """One row of one operation on one example.

    seconds: the median call. ratio: the time of PyTorch's own kernel over that of the row, in the
    same round; the median over the rounds, with half the distance between the quartiles. wrong: how
    the result differs from that of PyTorch's own kernel, None if it agrees.
    """

    operation: str
    example: str
    problem: str
    row: str
    threads: int
    seconds: float
    ratio: float
    spread: float
    wrong: str | None
