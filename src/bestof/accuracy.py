"""How far from PyTorch's own results those of alternatives may be: the user's choice, in three
words."""

from __future__ import annotations

from typing import Literal, get_args

from bestof.errors import InvalidArgument

Accuracy = Literal["exact", "float32", "relaxed"]
"""exact: only what gives the very bits of PyTorch. float32: within the error bounds of float32
arithmetic, Winograd's F(2) and F(4) with them; the default. relaxed: beyond those too, as F(6),
with 25 times the error of a plain sum, and bfloat16 inside, which errs by up to 2^-8 of what is
rounded: measured at random, by up to 1.7 times 2^-8 of the results, rms. What the program itself
computes in bfloat16 is float32 inside at either."""

ACCURACIES: tuple[Accuracy, ...] = get_args(Accuracy)
"""From the strictest on: each level allows what those before it allow."""

DEFAULT_ACCURACY: Accuracy = "float32"


def parse_accuracy(value: object, where: str = "accuracy") -> Accuracy:
    """The level of that name; InvalidArgument, beginning with `where`, for anything else."""
    for level in ACCURACIES:
        if isinstance(value, str) and value == level:
            return level
    raise InvalidArgument(f"{where}: expected one of {', '.join(ACCURACIES)}; got {value!r}")


def allows(level: Accuracy, needed: Accuracy) -> bool:
    """Whether a user who asked for `level` may get what only `needed` or a laxer level allows."""
    return ACCURACIES.index(needed) <= ACCURACIES.index(level)
