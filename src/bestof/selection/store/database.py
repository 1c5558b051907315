"""The protocol of a database: what a store writes to.

One thread at a time uses it. No call waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bestof.selection.store.record import Pin, Record


class Unavailable(Exception):
    """The database could not be read or written. If it is `busy`, a retry may succeed.

    `passing` says that the database did answer earlier, as before a restart of its server. Only
    those who must not lose anything wait for that: `flush`, and the end of the process.
    """

    def __init__(self, reason: str, *, busy: bool, passing: bool = False) -> None:
        super().__init__(reason)
        self.busy = busy
        self.passing = passing


class Database(Protocol):
    """Reads and writes records and pins, and never waits for another process.

    Every method raises Unavailable if the database cannot be used now, and StoreError if it is not
    a store of bestof. A writing method is one transaction: if it raises anything, the database is
    unchanged.
    """

    notices: list[str]  # warnings for the user; the code that gives one removes it

    @property
    def url(self) -> str:
        """Return the name of this database: `sqlite:////absolute/path`."""

    @property
    def title(self) -> str:
        """Return the name for messages: `the store '/absolute/path'`."""

    def exists(self) -> bool:
        """Return whether there may be anything to read. Takes microseconds."""

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return one record."""

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host."""

    def records(self, selector: str | None) -> list[Record]:
        """Return every record, or those of one selector, sorted."""

    def pins(self, selector: str | None) -> list[Pin]:
        """Return every pin, or those of one selector, in no order."""

    def write(self, records: Sequence[Record]) -> None:
        """Save records in this order, by the rule of `Record.absorb`."""

    def pin(self, order: Pin) -> None:
        """Save a pin. It replaces the one with the same selector, problem and host."""

    def unpin(self, selector: str, problem: str | None, host: str | None) -> bool:
        """Remove a pin. Return whether there was one."""

    def clear(self, selector: str | None) -> set[tuple[str, str, str]]:
        """Remove records. Return their keys."""

    def unite(self, records: Sequence[Record], pins: Sequence[Pin], *, theirs: bool) -> int:
        """Merge these records and pins into the database; see `Store.unite`."""

    def disconnect(self) -> None:
        """Close the connection. The next use opens another one."""

    def abandon(self) -> None:
        """Drop the connection without closing it, because it belongs to the parent process."""
