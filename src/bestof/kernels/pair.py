"""Arguments that are one integer for both axes, or one integer for each."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TypeAlias

from bestof.errors import KernelError

Pair: TypeAlias = "int | Iterable[int]"


_LIMIT = 2**63
_MOST_THREADS = 4096


def integer(value: object) -> int | None:
    """Return the value of an integer (NumPy's too), or None for anything else.

    Truth values and integers of more than 64 bits give None.
    """
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            return None
        try:
            value = operator.index(value)
        except TypeError:  # an array of several
            return None
    return value if -_LIMIT <= value < _LIMIT else None


def integer_of(value: object, name: str) -> int:
    """Return the integer that the argument `name` holds; raise KernelError for anything else."""
    number = integer(value)
    if number is None:
        raise KernelError(f"{name}: expected an integer; got {value!r}")
    return number


def pair_of(value: Pair, name: str) -> tuple[int, int]:
    """Return (y, x) of the argument `name`, an integer or two; raise KernelError for others."""
    both = integer(value)
    if both is not None:
        return both, both
    try:
        pair = [integer(one) for one in value]  # type: ignore[union-attr]  # no int: taken above
    except TypeError:
        pair = []
    if len(pair) != 2 or pair[0] is None or pair[1] is None:
        raise KernelError(f"{name}: expected an integer or a pair of them; got {value!r}")
    return pair[0], pair[1]


def threads_of(value: object) -> int:
    """Return the argument `threads`, 0 for None.

    Raises KernelError for anything but None and an integer from 0 to 4096.
    """
    if value is None:
        return 0
    number = integer_of(value, "threads")
    if not 0 <= number <= _MOST_THREADS:
        raise KernelError(f"threads: expected 1 to {_MOST_THREADS}; got {number}")
    return number


def shape_tuple(value: Iterable[int], name: str) -> tuple[int, ...]:
    """Return the extents that the argument `name` lists; raise KernelError for non-integers."""
    try:
        extents = [integer(extent) for extent in value]
    except TypeError:
        extents = [None]
    if None in extents:
        raise KernelError(f"{name}: expected integers, one an axis; got {value!r}")
    return tuple(extents)  # type: ignore[arg-type]  # no None among them


def pitch_of(pitch: int | None) -> int:
    """Return a pitch for the native code, 0 for none."""
    if pitch is None:
        return 0
    number = integer_of(pitch, "pitch")
    if not 0 < number < 2**31:
        raise KernelError(f"pitch: expected 1 to 2^31 - 1; got {pitch!r}")
    return number
