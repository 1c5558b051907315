"""The table of `bestof bench gemm`."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.product.measure import ProductTime
from bestof.view.bench.table import Table

_HEADINGS = ("", "product", "side", "threads", "ms", "GFLOP/s", "of peak", "ceiling", "ratio", "")


def product_table(title: str, rows: Sequence[ProductTime]) -> Table:
    """Return the table of every run of every product; a star marks our fastest.

    The title tells the peaks of multiply-adds that the shares are of.
    """
    peaks = {row.threads: row.gflops / row.of_peak for row in rows}
    title = ", ".join(
        [title, *(f"{_of_threads(n)}: {peak:.0f} GFLOP/s" for n, peak in peaks.items())]
    )
    return Table(title, _HEADINGS, [_cells(row, rows) for row in rows], left=3)


def _of_threads(count: int) -> str:
    return f"peak of {count} thread{'s' if count > 1 else ''}"


def _cells(row: ProductTime, rows: Sequence[ProductTime]) -> tuple[str, ...]:
    ours = [
        one
        for one in rows
        if one.ratio is not None and (one.case, one.threads) == (row.case, row.threads)
    ]
    best = bool(ours) and row is min(ours, key=lambda one: one.seconds)
    return (
        "*" if best else "",
        row.case,
        row.run,
        str(row.threads),
        f"{row.seconds * 1e3:.3f}",
        f"{row.gflops:.1f}",
        f"{row.of_peak:.2f}",
        f"{row.of_ceiling:.2f}",
        "" if row.ratio is None else f"{row.ratio.middle:.2f}",
        "" if row.ratio is None else f"± {row.ratio.spread:.2f}",
    )
