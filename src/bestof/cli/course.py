"""Watches how far the search of this process is, for the time line of its report."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

from bestof.selection.reports.report import Moment
from bestof.selection.state.registry import selectors

_MOST = 400  # moments; then every second one is dropped, and the interval doubles


class Course:
    """A thread that notes the trials and decisions of all selectors, every tenth of a second.

    In long runs the interval grows, so that at most _MOST moments are kept.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self._began = perf_counter()
        self._moments: list[Moment] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bestof course", daemon=True)

    def start(self) -> None:
        """Begin to note."""
        self._thread.start()

    def stop(self) -> tuple[Moment, ...]:
        """Return what was noted, and the present moment. Notes nothing more."""
        self._stop.set()
        self._thread.join(1.0)
        return (*self._moments, self._now())

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._moments.append(self._now())
            if len(self._moments) >= _MOST:
                self._moments = self._moments[1::2]
                self._interval *= 2.0

    def _now(self) -> Moment:
        live: list[Any] = selectors()
        return Moment(
            perf_counter() - self._began,
            sum(one.trials for one in live),
            sum(one.trial_seconds for one in live),
            sum(one.problems_settled for one in live),
        )
