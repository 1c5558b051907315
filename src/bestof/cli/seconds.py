"""Parse options that are numbers of seconds."""

from __future__ import annotations

import argparse
from math import isfinite


def seconds(text: str) -> float:
    """Return a finite number of seconds, at least 0. For `type` of an option."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(
            f"expected a finite number of seconds, at least 0; got {text!r}"
        )
    return number
