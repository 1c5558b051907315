"""What a store is written to: one thread at a time uses it, and no call waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bestof.selection.record import Pin, Record


class Unavailable(Exception):
    """A database that could not be read or written. If it is `busy`, asking again may help."""

    def __init__(self, reason: str, *, busy: bool) -> None:
        super().__init__(reason)
        self.busy = busy


class Database(Protocol):
    """Reads and writes records and pins, and never waits for another process.

    Every method raises Unavailable if the database cannot be used now, and StoreError if it is not
    a store of bestof. A method that writes is one transaction: whatever is raised, nothing of it is
    kept.
    """

    notices: list[str]  # what the user should be told; whoever tells it removes it

    @property
    def url(self) -> str:
        """Return what names this database: `sqlite:////absolute/path`."""

    @property
    def title(self) -> str:
        """Return its name for a message: `the store '/absolute/path'`."""

    def exists(self) -> bool:
        """Return whether there may be anything to read. Costs microseconds."""

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return one record."""

    def records(self, selector: str | None) -> list[Record]:
        """Return every record (of one selector, where named), sorted."""

    def pins(self, selector: str | None) -> list[Pin]:
        """Return every pin (of one selector, where named), in no order."""

    def write(self, records: Sequence[Record]) -> None:
        """Save records in this order, by the rule of `Record.absorb`."""

    def pin(self, order: Pin) -> None:
        """Keep a pin in place of the one with the same selector, problem and host."""

    def unpin(self, selector: str, problem: str | None, host: str | None) -> bool:
        """Remove a pin; return whether there was one."""

    def clear(self, selector: str | None) -> set[tuple[str, str, str]]:
        """Remove records, and return their keys."""

    def unite(self, records: Sequence[Record], pins: Sequence[Pin], *, theirs: bool) -> int:
        """Merge these records and pins into the database; see `Store.unite`."""

    def disconnect(self) -> None:
        """Release the connection. The next use opens another."""

    def abandon(self) -> None:
        """Forget the connection without closing it: it belongs to the process that forked this
        one."""
