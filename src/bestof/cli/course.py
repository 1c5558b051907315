"""How far the search of this process was at which time, for the time line of its report."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from bestof.selection.reports.report import Moment
from bestof.selection.state.registry import selectors

_MOST = 400  # moments


def course(began: float) -> tuple[Moment, ...]:
    """Return a moment for each decision of the live selectors, and one for the present.

    began: the beginning of the run, by `time.perf_counter`. Of many decisions, some are left out.
    """
    live: list[Any] = selectors()
    events = sorted((*event, number) for number, one in enumerate(live) for event in one.course())
    trials, seconds = [0] * len(live), [0.0] * len(live)
    moments = []
    for decisions, (at, tried, took, number) in enumerate(events, 1):
        trials[number], seconds[number] = tried, took
        moments.append(Moment(at - began, sum(trials), sum(seconds), decisions))
    step = max(1, -(-len(moments) // _MOST))
    now = Moment(
        perf_counter() - began,
        sum(one.trials for one in live),
        sum(one.trial_seconds for one in live),
        len(events),
    )
    return (*moments[::step], now)
