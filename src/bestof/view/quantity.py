"""Writes quantities in words."""

from __future__ import annotations


def ratio(value: float | None) -> str:
    """Return how many times, as 3.20x; empty for None."""
    return "" if value is None else f"{value:.2f}x"


def age(seconds: float) -> str:
    """Return how long ago, in the largest unit that is full: 3 days, 2 hours, just now."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return plural(int(seconds // size), unit)
    return "just now"


def plural(count: int, noun: str) -> str:
    """Return the count and its noun: 1 trial, 2 trials."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
