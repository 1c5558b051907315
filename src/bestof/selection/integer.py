"""Accept integers of any library."""

from __future__ import annotations

import operator


def integer(value: object) -> int | None:
    """Return an integer, such as NumPy's, as Python's own. Return None for a bool or anything
    else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type] # without __index__ it raises
    except TypeError:
        return None
