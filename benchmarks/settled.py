"""Run steps until `enable` has chosen for all of their calls."""

from __future__ import annotations

from collections.abc import Callable

from bestof.selection.state.registry import search_count

# This many steps without a search mean that nothing is searched any more.
_QUIET = 5


def settle(step: Callable[[], object], most: int) -> int:
    """Run up to `most` steps, and return how many. They end after five in a row without a search.

    A search that waits for the budget of tuning goes on.
    """
    searches, quiet = -1, 0
    for number in range(1, most + 1):
        step()
        now = search_count()
        quiet = quiet + 1 if now == searches else 0
        searches = now
        if quiet == _QUIET:
            return number
    return most
