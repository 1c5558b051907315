"""A warning that points at the line of the program that called a selector, however deep in here it is given."""

from __future__ import annotations

import sys
import warnings

from bestof.errors import BestofWarning

_PACKAGE = __name__.partition(".")[0]


def warn(message: str) -> None:
    """Give a BestofWarning for the innermost frame that is none of this package's."""
    level = 2
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE
    ):
        frame = frame.f_back
        level += 1
    warnings.warn(message, BestofWarning, stacklevel=level)
