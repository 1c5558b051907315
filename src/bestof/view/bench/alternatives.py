"""The tables of `bestof bench conv`: every alternative of a convolution, pass by pass."""

from __future__ import annotations

from bestof.bench.convolution.pass_times import AlternativeTime, PassTimes
from bestof.view.bench.table import Table
from bestof.view.quantity import plural, ratio

_HEADINGS = ("", "alternative", "ms", "spread", "ratio")


def alternatives_table(result: PassTimes) -> Table:
    """Return the table of one pass; a star marks the alternative that would be chosen."""
    title = (
        f"{result.name} of {result.problem}: {result.flops / 1e9:.3g} GFLOP, "
        f"{plural(result.threads, 'thread')}"
    )
    other = [row.name for row in result.alternatives if row.seconds is None and not row.reason]
    return Table(
        title,
        _HEADINGS,
        [_cells(row) for row in result.alternatives if row.name not in other],
        below=f"not applicable: {', '.join(other)}" if other else "",
    )


def _cells(row: AlternativeTime) -> tuple[str, ...]:
    if row.seconds is None:
        return "", row.name, f"failed: {row.reason}", "", ""
    spread = "" if row.spread is None else f"± {row.spread * 1e3:.3f}"
    return "*" if row.chosen else "", row.name, f"{row.seconds * 1e3:.3f}", spread, ratio(row.ratio)
