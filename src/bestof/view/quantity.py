"""Quantities as people read them."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def duration(seconds: float | None) -> str:
    """Three significant digits in the unit that fits: 1.23 s, 45.6 ms, 789 us; empty for None."""
    if seconds is None:
        return ""
    if seconds == 0:
        return "0 s"
    size = abs(seconds)
    # A thousandth below the unit's edge already rounds to 1000 of the smaller one.
    factor, unit = next((row for row in _UNITS if size >= row[0] * 0.9995), _UNITS[-1])
    value = size / factor
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{'-' if seconds < 0 else ''}{value:.{digits}f} {unit}"


def ratio(value: float | None) -> str:
    """How many times: 3.20x; empty for None."""
    return "" if value is None else f"{value:.2f}x"


def age(seconds: float) -> str:
    """How long ago, in the largest unit that is full: 3 days, 2 hours, just now."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return plural(int(seconds // size), unit)
    return "just now"


def plural(count: int, noun: str) -> str:
    """The count and its noun: 1 trial, 2 trials."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
