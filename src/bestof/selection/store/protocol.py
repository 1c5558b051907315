"""The protocol of a store: where decisions and their evidence outlive the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bestof.selection.record import Pin, Record


class Store(Protocol):
    """Keeps records by (selector, problem, host), and pins. Safe to call from several threads.

    A selector calls `load`, `pinned` and `save`. They wait a few milliseconds at most: `save` hands
    the record to a thread of the store, and the other two raise StoreBusy if there is no answer in
    time. Ask again then: the question is being answered meanwhile. `records` and `pins` wait
    longer. None of the five raises because of the file or the service behind the store: they warn
    once, and the process goes on with what it has in memory.

    `pin`, `unpin`, `clear` and `unite` are orders of a user. They wait until they are carried out,
    and raise StoreError if they cannot be; nothing is changed then.
    """

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the record of one problem, or None. Evidence comes in the order first saved."""

    def save(self, record: Record) -> None:
        """Keep a record by the rule of `Record.absorb`: evidence is replaced alternative by
        alternative, a decision only by another decision."""

    def flush(self, seconds: float = 3.0) -> bool:
        """Wait at most so long until every saved record is written; return whether it is."""

    def records(self, selector: str | None = None) -> list[Record]:
        """Return every record (of one selector, where named), sorted by selector, problem and
        host."""

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        """Force one alternative for a problem (None: every problem) on a host (None: every
        host)."""

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Take back the pin that was given with exactly these; return whether there was one."""

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        """Return the alternative ordered for a problem on a host, or None.

        The closest pin counts: of this problem before every problem, then of this host before every
        host. With None, only pins for every problem, or every host, are looked at.
        """

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Return every pin (of one selector, where named), sorted; None comes first."""

    def clear(self, selector: str | None = None) -> int:
        """Remove every record (of one selector, where named), and no pin; return how many."""

    def unite(
        self, records: Sequence[Record], pins: Sequence[Pin] = (), *, theirs: bool = True
    ) -> int:
        """Merge these records into the store (see `merge`) and add the pins, all of it or nothing.

        If the store has another pin for the same place, `theirs` tells whether the new one replaces
        it. Returns how many pins of the store stayed against a new one.
        """

    def close(self) -> None:
        """Write what was saved, and release what the store holds open. The store must not be used
        afterwards. Closing twice is harmless."""

    @property
    def url(self) -> str:
        """Return what names this store: `memory:`, `sqlite:////absolute/path`."""
