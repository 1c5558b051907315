"""For which problems a search leaves a row out that could run."""

from __future__ import annotations

from typing import Any

from bestof.torch.ops.memory_bound import refusal, reserve
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row


class Unpromising:
    """Tells why a row is not tried for a problem. A row is tried for at most `row.shapes` problems.

    is_order: whether the row is tried whatever its estimated speed, if its memory is allowed.

    The selector asks when it opens a problem, with its lock held.
    """

    def __init__(self, operation: Operation[Any], row: Row[Any], *, is_order: bool) -> None:
        self._operation, self._row, self._is_order = operation, row, is_order
        self._problems: set[Any] = set()

    def __call__(self, problem: Any) -> str | None:
        """Return why the row is not tried; None if it is, after the problem is remembered."""
        row, needed = self._row, self._operation.scratch(self._row, problem)
        too_much = refusal(needed)
        if too_much is not None:
            return too_much
        if self._is_order:
            reserve(needed)
            return None
        if not row.promising(problem):
            if row.registered:
                return "its `promising` says so"
            return self._operation.unpromising(row, problem)
        reserve(needed)
        if row.shapes is None or problem in self._problems:
            return None
        if len(self._problems) >= row.shapes:
            return f"its library keeps a kernel for each shape, and has {row.shapes}"
        self._problems.add(problem)
        return None
