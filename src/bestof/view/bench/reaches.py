"""Prints promised figures beside measured ones."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.reach import Reach


def print_reaches(found: Sequence[Reach]) -> None:
    """Print a heading and a line for each promise, or nothing if there is none."""
    if not found:
        return
    width = max(len(one.what) for one in found)
    print("\nagainst what is to be reached")
    for one in found:
        unknown = one.low is None or one.high is None
        quartiles = "" if unknown else f"{one.low:.2f} to {one.high:.2f}"
        bound = f"at most {one.reach:.2f}" if one.most else f"{one.reach:.2f}"
        missed = "" if one.met else "  missed"
        print(f"{one.what:<{width}}  {one.reached:5.2f}  {quartiles:<12}  {bound:>12}{missed}")
