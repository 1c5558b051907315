"""The level of accuracy: how far results may be from PyTorch's own. The user chooses one of
three."""

from __future__ import annotations

from typing import Literal, get_args

from bestof.errors import InvalidArgument

Accuracy = Literal["exact", "float32", "relaxed"]
"""The levels:

- exact: only alternatives that give the same bits as PyTorch.
- float32 (default): within the error bounds of float32 arithmetic, including Winograd's F(2) and
  F(4).
- relaxed: also Winograd's F(6), with 25 times the error of a plain sum, and bfloat16 inside.
  bfloat16 errs by up to 2^-8 of the rounded values. With random values, the rms error was up to 1.7
  times 2^-8 of the results.

If the program itself computes in bfloat16, sums are float32 at both of the last two levels."""

ACCURACIES: tuple[Accuracy, ...] = get_args(Accuracy)
"""The strictest first. Each level allows all that the levels before it allow."""

DEFAULT_ACCURACY: Accuracy = "float32"


def parse_accuracy(value: object, where: str = "accuracy") -> Accuracy:
    """Return the level of this name.

    Raises InvalidArgument for anything else; the message begins with `where`.
    """
    for level in ACCURACIES:
        if isinstance(value, str) and value == level:
            return level
    raise InvalidArgument(f"{where}: expected one of {', '.join(ACCURACIES)}; got {value!r}")


def allows(level: Accuracy, needed: Accuracy) -> bool:
    """Return whether the level `level` permits an alternative that needs the level `needed`."""
    return ACCURACIES.index(needed) <= ACCURACIES.index(level)
