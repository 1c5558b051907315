"""Accept integers of any library."""

from __future__ import annotations

import operator


def integer(value: object) -> int | None:
    """Return an integer, such as NumPy's, as Python's own. Return None for a bool or anything
    else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # it raises without __index__
    except TypeError:
        return None
