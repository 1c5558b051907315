"""The thread that reads and writes scripts in the store of `torch.distributed`.

Each place of a script is one key, which is written by compare_set. The first rank that publishes
wins, and compare_set returns that entry to the others. The thread polls the store and never waits
in it. If the store fails, the scripts are broken, and every rank decides alone.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from bestof.torch.ranks.entry import Entry

BUSY = 0.002
"""Seconds between two looks at the store while something is being tried."""

IDLE = 0.1
"""Seconds between two looks while everything is decided: a problem may be reopened."""

END_SECONDS = 2.0
"""Seconds that the end of the process waits for a look at the store that is under way."""

_log = logging.getLogger("bestof")


class KeyValueStore(Protocol):
    """The part of a store of `torch.distributed` that is used."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def set(self, key: str, value: str) -> None: ...


class Conversation:
    """The script of one problem, as far as this rank has read it."""

    def __init__(self, key: str, ahead: Callable[[], int]) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self.broken = False
        self.proposal: Entry | None = None
        self._ahead = ahead
        self._wake: Callable[[], None] = lambda: None

    def propose(self, entry: Entry) -> None:
        """Offer an entry. Only one offer is sent at a time."""
        if self.proposal is None:
            self.proposal = entry
            self._wake()

    def ahead(self) -> int:
        """Return how many steps pass until all ranks have read what is published now."""
        return self._ahead()

    @property
    def open(self) -> bool:
        """Whether there is no decision yet."""
        return not (self.entries and self.entries[-1].decided)


class Courier:
    """Carries entries between this rank and the store.

    `step` returns the step of this rank. `reopened` is called in the courier's thread if a rank has
    reopened a problem, with the key of the problem and the number of its race.
    """

    def __init__(
        self, store: KeyValueStore, step: Callable[[], int], reopened: Callable[[str, int], None]
    ) -> None:
        self._store = store
        self._step = step
        self._reopened = reopened
        self._open: list[Conversation] = []
        self._announcements: list[tuple[str, int]] = []
        self._read = 0  # the number of announcements read, of all ranks
        self._news = threading.Event()
        self._seconds_a_step = 0.0
        self._looked = (monotonic(), step())
        self._thread: threading.Thread | None = None
        self.broken = False

    def converse(self, key: str) -> Conversation:
        """Begin to follow the script of a problem."""
        conversation = Conversation(key, self.ahead)
        conversation.broken = self.broken
        conversation._wake = self._news.set
        self._open.append(conversation)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bestof ranks", daemon=True)
            self._thread.start()
            atexit.register(self._end)
        self._news.set()
        return conversation

    def announce(self, key: str, race: int) -> None:
        """Tell all ranks that this one has reopened a problem."""
        self._announcements.append((key, race))
        self._news.set()

    def ahead(self) -> int:
        """Return how many steps pass while an entry reaches all ranks.

        These are five looks at the store, and one step. The result is 0 until a step has been
        counted, because ranks have no common steps then.
        """
        if self._step() == 0:
            return 0
        if self._seconds_a_step <= 0.0:
            return 1
        return 1 + min(500, int(5 * BUSY / self._seconds_a_step) + 1)

    def close(self) -> None:
        """Stop using the store. From now on this rank decides alone."""
        self.broken = True
        for conversation in list(self._open):
            conversation.broken = True
        self._news.set()

    def _end(self) -> None:
        """Stop the thread before the interpreter ends.

        A thread that comes back from C++ while the interpreter ends is unwound there, and the
        process aborts ("terminate called without an active exception").
        """
        self.close()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def look(self) -> None:
        """Exchange everything with the store once. Raises what the store raises."""
        store = self._store
        while self._announcements:
            key, race = self._announcements.pop(0)
            place = store.add("reopened", 1)
            store.set(f"reopened/{place}", f"{race} {key}")
        count = store.add("reopened", 0)
        while self._read < count and store.check([f"reopened/{self._read + 1}"]):
            self._read += 1
            race_text, _, key = store.get(f"reopened/{self._read}").decode().partition(" ")
            self._reopened(key, int(race_text))
        for conversation in list(self._open):
            while self._exchange(conversation):
                pass
            if not conversation.open:
                self._open.remove(conversation)

    def _exchange(self, conversation: Conversation) -> bool:
        """Read the next entry, or write it. Return false if there is none."""
        place = f"{conversation.key}/{len(conversation.entries)}"
        proposal = conversation.proposal
        if not conversation.open:
            return False
        if proposal is not None:
            text = self._store.compare_set(place, "", proposal.text())
        elif self._store.check([place]):
            text = self._store.get(place)
        else:
            return False
        # Read the entry first. A proposal made without knowing it is dropped, and is made again if
        # it is still wanted.
        conversation.entries.append(Entry.parse(text))
        conversation.proposal = None
        return True

    def _run(self) -> None:
        try:
            while not self.broken:
                self._news.wait(BUSY if self._open else IDLE)
                self._news.clear()
                self._measure()
                self.look()
        except Exception as error:  # any error of a store whose server has gone
            _log.info("ranks no longer agree: %s: %s", type(error).__name__, error)
        self.close()

    def _measure(self) -> None:
        now, step = monotonic(), self._step()
        before, at = self._looked
        if step > at and now - before > 5 * BUSY:
            self._seconds_a_step = (now - before) / (step - at)
            self._looked = now, step
