"""The table of `bestof bench transpose`."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.transpose import TransposeTime
from bestof.view.bench.table import Table

_HEADINGS = ("array", "turn", "algorithm", "ms", "GB/s", "of copy", "spread", "of NumPy")


def transpose_table(rows: Sequence[TransposeTime]) -> Table:
    """Return the table of every algorithm on every array."""
    return Table("", _HEADINGS, [_cells(row) for row in rows], left=3)


def _cells(row: TransposeTime) -> tuple[str, ...]:
    return (
        "x".join(map(str, row.shape)),
        row.turn,
        row.algorithm,
        f"{row.seconds * 1e3:.3f}",
        f"{row.rate / 1e9:.1f}",
        f"{row.of_copy:.2f}",
        f"± {row.spread:.2f}",
        f"{row.of_numpy:.2f}",
    )
