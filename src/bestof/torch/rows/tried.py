"""For which problems a search tries a row."""

from __future__ import annotations

from typing import Any

from bestof.torch.ops.row import Row


class Tried:
    """Tells for which problems a row is tried, at most `row.shapes` of them.

    The selector asks when it opens a problem, with its lock held.
    """

    def __init__(self, row: Row[Any]) -> None:
        self._row = row
        self._problems: set[Any] = set()

    def __call__(self, problem: Any) -> bool:
        """Return whether the row is tried for a problem, and remember the answer."""
        row = self._row
        if not row.is_tried(problem):
            return False
        if row.shapes is None or problem in self._problems:
            return True
        if len(self._problems) >= row.shapes:
            return False
        self._problems.add(problem)
        return True
