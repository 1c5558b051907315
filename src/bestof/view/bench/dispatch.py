"""The tables of `bestof bench dispatch`."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.call_time import REACH, REACH_IN_PYTHON, CallTime
from bestof.bench.dispatch import THREADS, DispatchTime
from bestof.view.bench.table import Table

_TORCH_HEADINGS = (
    *("", "PyTorch us", "a Python pass", "in Python", "reach", "enabled", "spread", "reach"),
)


def dispatch_table(rows: Sequence[DispatchTime]) -> Table:
    """Return the table of what a selection costs, in nanoseconds."""
    headings = ("", "ns", "spread", f"{THREADS} threads", "reach")
    return Table("", headings, [_cells(row) for row in rows], left=1)


def _cells(row: DispatchTime) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.seconds * 1e9:,.0f}",
        f"± {row.spread * 1e9:,.0f}",
        f"{row.threaded * 1e9:,.0f}",
        "" if row.reach is None else f"{row.reach * 1e9:,.0f}",
    )


def torch_dispatch_table(rows: Sequence[CallTime]) -> Table:
    """Return the table of what settled convolutions and products cost, in microseconds."""
    return Table("", _TORCH_HEADINGS, [_torch_cells(row) for row in rows], left=1)


def _torch_cells(row: CallTime) -> tuple[str, ...]:
    return (
        row.name,
        *(f"{seconds * 1e6:.1f}" for seconds in (row.pytorch, row.passed)),
        "" if row.in_python is None else f"{row.in_python * 1e6:.1f}",
        "" if row.in_python is None else f"{REACH_IN_PYTHON * 1e6:.0f}",
        f"{row.enabled * 1e6:.1f}",
        f"± {row.spread * 1e6:.1f}",
        f"{REACH * 1e6:.0f}",
    )
