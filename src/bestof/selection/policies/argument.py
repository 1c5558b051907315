"""Check the arguments of policies.

Each message names the argument, what was expected, and what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from numbers import Real

from bestof.errors import InvalidArgument
from bestof.selection.integer import integer


def check_count(policy: str, argument: str, value: object, least: int) -> int:
    """Return `value` as an integer of at least `least`.

    Raises InvalidArgument for anything else, including True and False.
    """
    number = integer(value)
    if number is None or number < least:
        raise InvalidArgument(
            f"{policy}: {argument}: expected an integer of at least {least}; got {value!r}"
        )
    return number


def check_number(
    policy: str, argument: str, value: object, least: float, below: float | None = None
) -> None:
    """Raise InvalidArgument unless `least <= value`, and `value < below` if given.

    NaN is refused.
    """
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    if not number >= least or (below is not None and not number < below):
        expected = f"a number of at least {least:g}" + (
            "" if below is None else f" and below {below:g}"
        )
        raise InvalidArgument(f"{policy}: {argument}: expected {expected}, got {value!r}")


def check_names(policy: str, alternatives: Sequence[str]) -> None:
    """Raise InvalidArgument unless there is at least one name, and all names differ."""
    if isinstance(alternatives, str) or not alternatives:
        raise InvalidArgument(
            f"{policy}: alternatives: expected a list of at least one name, got {alternatives!r}"
        )
    if len(set(alternatives)) != len(alternatives):
        raise InvalidArgument(
            f"{policy}: alternatives: expected names that differ, got {list(alternatives)!r}"
        )


def check_pairs(policy: str, argument: str, value: object) -> None:
    """Raise InvalidArgument unless `value` is a tuple of tuples (name, value) with different names.

    Lists are refused, because a policy must be hashable.
    """
    if not isinstance(value, tuple) or any(
        not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str)
        for pair in value
    ):
        raise InvalidArgument(
            f"{policy}: {argument}: expected a tuple of (name, value) tuples, got {value!r}"
        )
    if len({name for name, _ in value}) != len(value):
        raise InvalidArgument(f"{policy}: {argument}: expected names that differ, got {value!r}")
