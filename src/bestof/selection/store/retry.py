"""When a store that could not be written is tried again, and when its user is told."""

from __future__ import annotations

import time

from bestof.selection.store.backoff import Backoff
from bestof.selection.store.database import Unavailable

_BUSY_FOR_LONG = 30.0  # so long is worth a warning: 200 processes at once wait for 20 s
_FIRST, _LAST = 1.0, 60.0  # between attempts where waiting does not help, doubled each time


class Retry:
    """Counts failures. A busy store is asked again soon (see Backoff); one that fails for another
    reason, such as a full disk, after 1 s, 2 s and so on up to a minute."""

    def __init__(self) -> None:
        self._again_at = 0.0
        self._since: float | None = None
        self._delay = _FIRST
        self._backoff = Backoff()
        self.reason: Exception | None = None  # of the last failure

    def failed(self, error: Unavailable) -> bool:
        """Note a failure; return whether the user should know of it."""
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

    def give_up(self) -> float:
        """Try again in a minute only; return these seconds."""
        self._again_at = time.monotonic() + _LAST
        return _LAST

    def seconds_left(self) -> float:
        """Return how long to wait before the next attempt."""
        return max(0.0, self._again_at - time.monotonic())
