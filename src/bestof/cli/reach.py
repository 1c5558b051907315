"""What was to be reached and what was, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.model.promises import Reach


def print_reaches(found: Sequence[Reach]) -> None:
    """A line for each; nothing where there is nothing to say."""
    if not found:
        return
    width = max(len(one.what) for one in found)
    print("\nagainst what is to be reached")
    for one in found:
        quartiles = (
            "" if one.low is None or one.high is None else f"{one.low:.2f} to {one.high:.2f}"
        )
        bound = f"at most {one.reach:.2f}" if one.most else f"{one.reach:.2f}"
        print(
            f"{one.what:<{width}}  {one.reached:5.2f}  {quartiles:<12}  {bound:>12}{'' if one.met else '  missed'}"
        )
