"""The thread that reads and writes the log in the store of `torch.distributed`.

The store is asked, never waited for. If it fails, the log is broken, and every rank decides for
itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from bestof.entries import entries
from bestof.torch.process.ranks.entry import REOPEN, Entry, parse_place, place_text
from bestof.torch.process.ranks.problem_log import ProblemLog

BUSY = 0.01
"""Least seconds between two looks at the store while calls follow the log. With 0.002,
tuning four ranks on two processors cost 2.24 s instead of 1.75 s (one run each)."""

IDLE = 0.1
"""The most seconds that a look waits for the next step."""

REST = 2.0
"""Seconds between two looks while no call follows the log: a problem may be reopened. 1,024 ranks
then ask the store of their job 512 times a second."""

PATIENT_LOOKS = 10
"""After so many looks without a call or an entry, the time between looks doubles, up to REST."""

MOST_ENTRIES = 64
"""Entries in one place of the log."""

END_SECONDS = 2.0
"""Seconds that the end of the process waits for a look at the store that is under way."""

_MOST_AHEAD = 500  # steps
_FADE = 0.9  # of the longest delay of an offer, in steps, at every look

_log = logging.getLogger("bestof")


class KeyValueStore(Protocol):
    """What is used of a store of `torch.distributed`."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...


class Courier:
    """Carries entries between this rank and the log.

    step: returns the optimizer step of this rank. reopened: called, in the courier's thread, with
    the key of each problem that a rank has reopened. lasts: returns whether the job's store is
    still there to be asked.
    """

    def __init__(
        self,
        store: KeyValueStore,
        step: Callable[[], int],
        reopened: Callable[[str], None],
        lasts: Callable[[], bool] = lambda: True,
    ) -> None:
        self.broken = False
        self.asked = 0
        self._store = store
        self._step = step
        self._reopened = reopened
        self._lasts = lasts
        self._process = os.getpid()
        self._place = 0  # the first place that this rank has not read
        self._lock = threading.Lock()
        self._logs: dict[str, ProblemLog] = {}
        self._offers: dict[str, tuple[ProblemLog, int]] = {}  # and the steps of their offers
        self._wake = threading.Event()
        self._quiet = 0  # looks in a row that found nothing to do
        self._heard = 0  # calls at the last look
        self._delay = 0.0  # steps until an offer is read
        self._stepped = False  # whether a step, not the clock, is why the thread looks
        self._looked, self._looked_in = monotonic(), step()
        self._thread: threading.Thread | None = None

    def log(self, key: str) -> ProblemLog:
        with self._lock:
            return self._logs.setdefault(key, ProblemLog(key, self))

    def start(self) -> None:
        """Start the thread; the second call does nothing. Give up the log if none can start."""
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="bestof ranks", daemon=True)
            self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the system starts no thread at present
            self.close()
            return
        atexit.register(self._end)

    def carry(self, log: ProblemLog) -> None:
        """Write the offer of this problem with the next look: one for all problems of a step."""
        with self._lock:
            self._offers[log.key] = log, self._step()

    def count_call(self, step: int) -> None:
        """Take note of a call that follows the log. The first one in a step has the thread look.

        Ranks that train together offer their entries in the same step. They then read, with the
        first look of the next step, what the first of them has written.
        """
        self.asked += 1
        if step != self._looked_in and monotonic() - self._looked >= BUSY:
            self._looked_in, self._stepped = step, True
            self._wake.set()

    def ahead(self) -> int:
        """Return how many steps pass while an entry reaches all ranks: twice as many as the last
        offers took to be read, since other ranks may look that much later.

        0 while no step was counted: then there is nothing to be in step with.
        """
        if self._step() == 0:
            return 0
        return 2 * max(1, min(_MOST_AHEAD, round(self._delay)))

    def close(self) -> None:
        """Give up the log: from now on this rank decides for itself."""
        self.broken = True
        if self._process == os.getpid():  # in a child process, another thread may hold the event
            self._wake.set()

    def look(self) -> None:
        """Write the offers and read all new places; raise what the store raises."""
        self._delay *= _FADE
        while True:
            offers = self._open_offers()
            key = str(self._place)
            if offers:
                text = self._store.compare_set(key, "", place_text(offers))
            elif self._store.check([key]):
                text = self._store.get(key)
            else:
                return
            self._place += 1
            self._quiet = 0
            self._take(parse_place(text))

    def _open_offers(self) -> list[tuple[str, Entry]]:
        """Return the offers whose place is still free. This rank has read all that was before."""
        found: list[tuple[str, Entry]] = []
        now = self._step()
        with self._lock:
            for key, (log, since) in entries(self._offers):
                entry = log.offered()
                if entry is None:
                    del self._offers[key]
                    self._delay = max(self._delay, now - since)
                elif len(found) < MOST_ENTRIES:
                    found.append((key, entry))
        return found

    def _take(self, entries: list[tuple[str, Entry]]) -> None:
        for key, entry in entries:
            self.log(key).entries.append(entry)
            if entry.kind == REOPEN:
                self._reopened(key)

    def _run(self) -> None:
        try:
            while not self.broken:
                self._wake.wait(self._pause())
                self._wake.clear()
                if not self._lasts():
                    break
                self._looked = monotonic()
                self.look()
        except Exception as error:  # of a store whose server is gone, whatever it raises
            _log.info("ranks no longer agree: %s: %s", type(error).__name__, error)
        self.close()

    def _pause(self) -> float:
        """Return the most seconds until the next look: few while calls follow the log, unless the
        next step is awaited."""
        asked, stepped = self.asked, self._stepped
        self._stepped = False
        self._quiet = 0 if asked != self._heard else self._quiet + 1
        self._heard = asked
        if stepped:
            return IDLE
        return min(REST, BUSY * 2.0 ** min(16, self._quiet // PATIENT_LOOKS))

    def _end(self) -> None:
        """Stop the thread before the interpreter ends.

        A thread that comes back from C++ while the interpreter ends is unwound there, and the
        process aborts ("terminate called without an active exception").
        """
        self.close()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(END_SECONDS)
