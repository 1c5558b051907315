"""Decide when to write to a failing store again, and when to tell the user."""

from __future__ import annotations

import time

from bestof.errors import StoreError
from bestof.selection.store.backoff import Backoff
from bestof.selection.store.database import Unavailable

# a store that is busy for longer is worth a warning: with 200 processes at once, waits reach 20 s
_BUSY_FOR_LONG = 30.0
# between attempts at a store that is not busy but fails; doubled each time
_FIRST, _LAST = 1.0, 60.0


class Retry:
    """Counts failures.

    A busy store is tried again soon (see Backoff). If a store fails for another reason, such as a
    full disk, it is tried again after 1 s, 2 s and so on, up to a minute.
    """

    def __init__(self) -> None:
        self._again_at = 0.0
        self._since: float | None = None
        self._delay = _FIRST
        self._backoff = Backoff()
        self.reason: Exception | None = None  # the reason of the last failure

    def failed(self, error: Unavailable) -> bool:
        """Count a failure. Return whether to tell the user."""
        now = time.monotonic()
        self._since = self._since or now
        self.reason = error
        if error.busy:
            self._again_at = now + self._backoff.seconds()
            return now - self._since > _BUSY_FOR_LONG
        self._again_at = now + self._delay
        self._delay = min(2 * self._delay, _LAST)
        return True

    def succeeded(self) -> None:
        """Forget the failures."""
        self._again_at, self._since, self._delay, self.reason = 0.0, None, _FIRST, None
        self._backoff.reset()

    def give_up(self, error: StoreError) -> float:
        """Return the seconds until the next attempt, which is in a minute."""
        self.reason = error
        self._again_at = time.monotonic() + _LAST
        return _LAST

    def seconds_left(self) -> float:
        """Return how long to wait before the next attempt."""
        return max(0.0, self._again_at - time.monotonic())
