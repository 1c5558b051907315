"""The protocol of a store, which keeps decisions and their evidence beyond the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bestof.selection.store.record import Pin, Record


class Store(Protocol):
    """Keeps records by (selector, problem, host), and pins. Safe to call from several threads.

    A selector calls `load`, `elsewhere`, `pinned` and `save`, which wait a few milliseconds at
    most. `save` hands the record to a thread of the store. The other three raise StoreBusy if there
    is no answer in time; the store continues to find it, so ask again later. `records` and `pins`
    wait longer. If the file or the service behind the store fails, none of the six raises. They
    warn once, and the process continues with what is in memory.

    `contents`, `pin`, `unpin`, `clear` and `unite` are orders of a user. They wait until they are
    carried out. If they cannot be, they raise StoreError and change nothing.
    """

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the record of one problem, or None. Evidence keeps the order in which it was
        saved."""

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host than this, or None.

        Records that still wait to be written are not considered.
        """

    def save(self, record: Record) -> None:
        """Keep a record by the rule of `Record.absorb`.

        A record with a time or a name that cannot be written is not kept, and told once.

        Evidence is replaced one alternative at a time. Only another decision replaces a decision.
        """

    def flush(self, seconds: float = 3.0) -> bool:
        """Wait until every saved record is written, at most this many seconds. Return whether it
        is."""

    def records(self, selector: str | None = None) -> list[Record]:
        """Return every record, or those of one selector, sorted by selector, problem and host."""

    def contents(self) -> tuple[list[Record], list[Pin]]:
        """Return every record and every pin, each sorted as by `records` and `pins`."""

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        """Order one alternative for a problem on a host. None stands for all of them."""

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Remove the pin with exactly these values. Return whether there was one."""

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        """Return the alternative ordered for a problem on a host, or None.

        The closest pin decides: a pin for this problem is closer than one for every problem, then a
        pin for this host is closer than one for every host. If an argument is None, only pins for
        every problem, or every host, are considered.
        """

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Return every pin, or those of one selector, sorted. None comes first."""

    def clear(self, selector: str | None = None) -> int:
        """Remove every record, or those of one selector, but no pin. Return how many."""

    def unite(
        self, records: Sequence[Record], pins: Sequence[Pin] = (), *, theirs: bool = True
    ) -> int:
        """Merge records into the store (see `merge`) and add pins: all of them, or none if it
        fails.

        If the store has another pin for the same place, `theirs` says whether the new one replaces
        it. Return how many pins of the store stayed against a new one.
        """

    def close(self) -> None:
        """Write what was saved, and release files and threads.

        Do not use the store afterwards. Closing twice is harmless.
        """

    @property
    def url(self) -> str:
        """Return the name of this store: `memory:`, `sqlite:////absolute/path`, and so on.

        It holds no password."""
