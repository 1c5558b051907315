"""How long a call waits for the answer of a store."""

from __future__ import annotations

import math
import os
import time

from bestof.errors import StoreError
from bestof.selection.store.worker import Job

WAIT_SECONDS = 0.0035
_SLOW_SECONDS = 0.001  # an answer that took this long makes the next waits short
_SHORT_SECONDS = 0.0005
_SHORT_FOR_SECONDS = 0.1


class Patience:
    """Bounds what a call waits: a call asks two or three times, and all of it stays below 5 ms.

    A read waits 3.5 ms. After an answer that took more than 1 ms, reads wait 0.5 ms for a tenth of
    a second. While an answer is overdue, they do not wait. BESTOF_STORE_WAIT sets another time, in
    seconds, which then holds for every
    read: for programs that call a problem only once, and would rather wait.
    """

    __slots__ = ("_fixed", "_overdue", "_short_until")

    def __init__(self) -> None:
        self._fixed = _setting()
        self._overdue: Job | None = None
        self._short_until = 0.0

    def wait(self, job: Job) -> bool:
        """Wait for a job; return whether it is finished."""
        if self._fixed is not None:
            return job.wait(self._fixed)
        if self._overdue is not None and not self._overdue.finished:
            return job.finished
        begin = time.monotonic()
        finished = job.wait(_SHORT_SECONDS if begin < self._short_until else WAIT_SECONDS)
        end = time.monotonic()
        if end - begin > _SLOW_SECONDS:
            self._short_until = end + _SHORT_FOR_SECONDS
        self._overdue = None if finished else job
        return finished


def _setting() -> float | None:
    text = os.environ.get("BESTOF_STORE_WAIT")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= 3600.0:
        raise StoreError(
            f"BESTOF_STORE_WAIT: expected seconds from 0 to 3600, as in 0.05, got {text!r}"
        )
    return seconds
