"""Arguments that are one integer for both axes, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from bestof.errors import KernelError

Pair: TypeAlias = "int | Sequence[int]"


def is_integer(value: object) -> bool:
    """Whether it is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def pair_of(value: Pair, name: str) -> tuple[int, int]:
    """(y, x) of the argument `name`; KernelError for what is neither an integer nor two of them."""
    if isinstance(value, int):
        return value, value
    pair = tuple(value) if isinstance(value, Sequence) else ()
    if len(pair) != 2 or not all(map(is_integer, pair)):
        raise KernelError(f"{name}: expected an integer or a pair of them; got {value!r}")
    return pair[0], pair[1]
