"""Arguments that are one integer for both axes, or one for each."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TypeAlias

from bestof.errors import KernelError

Pair: TypeAlias = "int | Iterable[int]"


def integer(value: object) -> int | None:
    """The integer that it is, one of NumPy too; None for a truth value, and for all else."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return None


def integer_of(value: object, name: str) -> int:
    """The integer that the argument `name` is; KernelError for what is none."""
    number = integer(value)
    if number is None:
        raise KernelError(f"{name}: expected an integer; got {value!r}")
    return number


def pair_of(value: Pair, name: str) -> tuple[int, int]:
    """(y, x) of the argument `name`; KernelError for what is neither an integer nor two of them."""
    both = integer(value)
    if both is not None:
        return both, both
    try:
        pair = [integer(one) for one in value]  # type: ignore[union-attr]  # an integer of another kind was taken above
    except TypeError:
        pair = []
    if len(pair) != 2 or pair[0] is None or pair[1] is None:
        raise KernelError(f"{name}: expected an integer or a pair of them; got {value!r}")
    return pair[0], pair[1]


def threads_of(value: object) -> int:
    """The argument `threads`, 0 for None; KernelError for what is neither None nor an integer of at least 0."""
    if value is None:
        return 0
    return integer_of(value, "threads")
