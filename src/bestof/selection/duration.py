"""Write durations for people to read."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def duration(seconds: float | None) -> str:
    """Return three significant digits in the unit that fits: 1.23 s, 45.6 ms, 789 us.

    Return an empty text for None.
    """
    if seconds is None:
        return ""
    if seconds == 0:
        return "0 s"
    size = abs(seconds)
    # A value just below a unit (by less than 0.05 %) would be rounded to 1000 of the smaller unit.
    factor, unit = next((row for row in _UNITS if size >= row[0] * 0.9995), _UNITS[-1])
    value = size / factor
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{'-' if seconds < 0 else ''}{value:.{digits}f} {unit}"
