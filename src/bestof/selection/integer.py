"""Integers of any library."""

from __future__ import annotations

import operator


def integer(value: object) -> int | None:
    """Return an integer, such as NumPy's, as Python's own; None for a bool and for anything
    else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what has no __index__ raises
    except TypeError:
        return None
