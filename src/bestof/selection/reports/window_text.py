"""Tell how a window of steps went."""

from __future__ import annotations

from bestof.selection.reports.report import Report
from bestof.selection.state.registry import windows


def window_text(report: Report) -> str | None:
    """Return how far the window of the process is, its hit rate, and what it missed.

    The hit rate is the share of calls that a decision answered, as PaddlePaddle tells it. None if
    the process searches in every step.
    """
    found = windows()
    if not found:
        return None
    window = found[0]
    hits = sum(one.settled_calls for one in report.selectors)
    calls = hits + sum(one.trials for one in report.selectors)
    share = f"{hits / calls:.0%}" if calls else "none"
    return (
        f"steps {window.start_step} to {window.stop_step}, of {window.steps} so far; hit rate "
        f"{share} of {calls:,} calls; {window.missed} problems missed"
    )
