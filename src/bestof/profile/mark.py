"""A mark: what bestof's selectors did at some moment of a capture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A trial, a decision or a drift; `track` says which. Times are seconds of the capture."""

    track: str
    name: str
    start: float
    seconds: float = 0.0
