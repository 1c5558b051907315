"""The table of `bestof bench operation`."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.row_time import RowTime
from bestof.view.bench.table import Table

_HEADINGS = ("", "operation", "example", "row", "ms", "ratio", "")


def operation_table(title: str, rows: Sequence[RowTime]) -> Table:
    """Return the table of every row on every example; a star marks the fastest right one."""
    return Table(title, _HEADINGS, [_cells(row, rows) for row in rows], left=4)


def _cells(row: RowTime, rows: Sequence[RowTime]) -> tuple[str, ...]:
    words = row.operation, row.example, row.row
    if row.wrong is not None:
        return ("!", *words, f"wrong: {row.wrong}", "", "")
    same = [
        one
        for one in rows
        if (one.operation, one.example) == (row.operation, row.example) and one.wrong is None
    ]
    best = row is min(same, key=lambda one: one.seconds)
    return (
        "*" if best else "",
        *words,
        f"{row.seconds * 1e3:.3f}",
        f"{row.ratio:.2f}",
        f"± {row.spread:.2f}",
    )
