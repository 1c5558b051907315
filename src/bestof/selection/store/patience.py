"""Limit how long a call waits for the answer of a store."""

from __future__ import annotations

import math
import os
import time

from bestof.errors import StoreError
from bestof.selection.store.worker import Job

WAIT_SECONDS = 0.0035
_SLOW_SECONDS = 0.001  # after an answer this slow, the next waits are short
_SHORT_SECONDS = 0.0005
_SHORT_FOR_SECONDS = 0.1


class Patience:
    """Limits the wait of a call. A call asks two or three times, and waits less than 5 ms in all.

    A read waits at most 3.5 ms. For a tenth of a second after an answer that took more than 1 ms,
    reads wait at most 0.5 ms. While an answer is overdue, they do not wait.

    The environment variable BESTOF_STORE_WAIT sets another limit for every read, in seconds. It is
    for programs that call each problem only once.
    """

    __slots__ = ("_fixed", "_overdue", "_short_until")

    def __init__(self) -> None:
        self._fixed = _setting()
        self._overdue: Job | None = None
        self._short_until = 0.0

    def wait(self, job: Job) -> bool:
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
