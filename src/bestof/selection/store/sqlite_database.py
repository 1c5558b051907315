"""Records and pins in one SQLite file, which many processes may share."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bestof.selection.record import Pin, Record
from bestof.selection.store import sqlite_schema as schema
from bestof.selection.store.database import Unavailable
from bestof.selection.store.merge import merge, pins_to_write
from bestof.selection.store.sqlite_file import (
    FolderLock,
    Identity,
    check_place,
    foreign,
    identity,
    is_busy,
    is_damaged,
    set_aside,
)

_T = TypeVar("_T")

_ABANDONED: list[sqlite3.Connection] = []  # of a parent process: never closed here


class SqliteDatabase:
    """Reads and writes the file at `path` in WAL mode, one transaction a change.

    `synchronous=NORMAL`: what was written survives the end of the process by any signal; the loss
    of power may take the last changes, and damages nothing. The connection is opened by the first
    use. The file is created by the first change; its folder must exist.

    StoreError at once if the file belongs to another program or to a newer bestof. `claimed` says
    that the path is bestof's own: even a file that is no database at all is then a damaged one of
    bestof. A damaged file is set aside, with a notice that names both paths, and a new one is
    begun.

    SQLite itself never waits here: a file that another process has locked is Unavailable at once.
    (Where locks do not work at all, SQLite tries for up to 10 s by itself.)
    """

    def __init__(self, path: str | os.PathLike[str], *, claimed: bool = False) -> None:
        self._path = Path(path).expanduser().absolute()
        self._claimed = claimed
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._only_read = False
        self._folder_lock = FolderLock(self._path.parent)
        self.notices: list[str] = []
        _DATABASES.add(self)
        self._check_place()

    @property
    def url(self) -> str:
        """Return `sqlite:///` and the absolute path."""
        return f"sqlite:///{self._path}"

    @property
    def title(self) -> str:
        """Return the name for a message."""
        return f"the store '{self._path}'"

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self._connection is not None or os.path.exists(self._path)

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return one record, read in one query."""
        return self._read(lambda c: schema.read_record(c, selector, problem, host), None)

    def records(self, selector: str | None) -> list[Record]:
        """Return every record (of one selector, where named), sorted."""
        return self._read(lambda c: schema.read_records(c, selector), [])

    def pins(self, selector: str | None) -> list[Pin]:
        """Return every pin (of one selector, where named), in no order."""
        return self._read(lambda c: schema.read_pins(c, selector), [])

    def write(self, records: Sequence[Record]) -> None:
        """Save records in this order, by the rule of `Record.absorb`."""

        def action(connection: sqlite3.Connection) -> None:
            for record in records:
                schema.write_record(connection, record)

        self._write(action)

    def pin(self, order: Pin) -> None:
        """Keep a pin in place of the one with the same selector, problem and host."""
        self._write(lambda connection: schema.write_pin(connection, order))

    def unpin(self, selector: str, problem: str | None, host: str | None) -> bool:
        """Remove a pin; return whether there was one."""
        return self._write(lambda c: schema.delete_pin(c, selector, problem, host))

    def clear(self, selector: str | None) -> set[tuple[str, str, str]]:
        """Remove records, and return their keys."""
        return self._write(lambda connection: schema.delete_records(connection, selector))

    def unite(self, records: Sequence[Record], pins: Sequence[Pin], *, theirs: bool) -> int:
        """Merge these records and pins into the file; return how many of its pins stayed."""

        def action(connection: sqlite3.Connection) -> int:
            came = {record.key for record in records}
            kept = [r for r in schema.read_records(connection, None) if r.key in came]
            for record in merge(kept, records):
                schema.write_record(connection, record)
            written, stayed = pins_to_write(
                schema.read_pins(connection, None), pins, replace=theirs
            )
            for pin in written:
                schema.write_pin(connection, pin)
            return stayed

        return self._write(action)

    def disconnect(self) -> None:
        """Close the connection, and roll back what it left open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Forget the connection of the parent process."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
        self._connection = None

    def _read(self, action: Callable[[sqlite3.Connection], _T], nothing: _T) -> _T:
        if not self.exists():
            return nothing
        return self._persist(action)

    def _write(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._only_read:
            self.disconnect()  # the permission, or the space, may be there by now

        def transaction(connection: sqlite3.Connection) -> _T:
            connection.execute("BEGIN IMMEDIATE")
            result = action(connection)
            connection.execute("COMMIT")
            return result

        return self._persist(transaction)

    def _persist(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `action`, and once more with a new file if this one was damaged. Nothing is left
        open, whatever is
        raised: a signal handler may raise at any moment."""
        finished = False
        try:
            for attempt in (1, 2):
                try:
                    result = action(self._connected())
                    finished = True
                    return result
                except UnicodeDecodeError as error:  # a damaged name in a message of SQLite
                    if attempt == 2:
                        raise Unavailable(str(error), busy=False) from error
                    self._set_aside(error)
                except sqlite3.DatabaseError as error:
                    if not is_damaged(error) or attempt == 2:
                        raise Unavailable(str(error), busy=is_busy(error)) from error
                    self._set_aside(error)
                except OSError as error:
                    busy = isinstance(error, BlockingIOError)
                    raise Unavailable(str(error), busy=busy) from error
            raise AssertionError("the second attempt returns or raises")
        finally:
            if not finished:
                self._folder_lock.release()
                self._roll_back()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._connection.in_transaction:
            self._roll_back()  # a second exception came while the first was answered
        if self._connection is not None:
            self._check_file()
        if self._connection is None:
            found = identity(self._path)
            with self._folder_lock.shared(found is not None and found.size > 0):
                self._check_place()
                self._identity = identity(self._path)
                self._only_read = False
                try:
                    self._connection = self._open(str(self._path))
                except sqlite3.OperationalError as error:
                    if is_busy(error) or is_damaged(error) or self._identity is None:
                        raise
                    self._connection = self._open_for_reading()
                    self._only_read = True
                self._identity = identity(self._path)
        return self._connection

    def _check_place(self) -> None:
        """Raise StoreError if the file is not bestof's. If this process has it open already, it was
        checked then, and to read it again would be wrong: closing any descriptor of a file cancels
        the locks of its connections (https://sqlite.org/howtocorrupt.html, section 2.2)."""
        here = identity(self._path)
        for other in list(_DATABASES):
            known = other._identity
            if other._connection is not None and known is not None and known.is_that_of(here):
                return
        check_place(self._path, claimed=self._claimed)

    def _check_file(self) -> None:
        """Disconnect from a file that was deleted or set aside, where what is written would be
        lost. Raise DatabaseError if the file was cut short: bestof's files only grow, and SQLite
        may not notice for long."""
        known, found = self._identity, identity(self._path)
        if known is None or not known.is_that_of(found):
            self.disconnect()
        elif found is not None and found.size < known.size:
            raise sqlite3.DatabaseError(
                f"the file was cut from {known.size} to {found.size} bytes while it was in use"
            )
        else:
            self._identity = found

    def _open(self, database: str, *, only_read: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            database, timeout=0.0, isolation_level=None, check_same_thread=False, uri=only_read
        )
        try:
            if not only_read:
                schema.prepare(connection, self._path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
            elif connection.execute("PRAGMA application_id").fetchone()[0] == 0:
                raise foreign(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_for_reading(self) -> sqlite3.Connection:
        """In a folder where SQLite cannot make its shared memory, a file can only be read as one
        that never changes."""
        try:
            return self._open(f"{self._path.as_uri()}?mode=ro", only_read=True)
        except sqlite3.OperationalError:
            return self._open(f"{self._path.as_uri()}?mode=ro&immutable=1", only_read=True)

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except BaseException:
                self.disconnect()  # closing rolls back
                raise

    def _set_aside(self, error: Exception) -> None:
        self.disconnect()
        with self._folder_lock.shared(False):
            if self._identity is None or not self._identity.is_that_of(identity(self._path)):
                return  # another process did it
            target = set_aside(self._path)
        self.notices.append(
            f"the store '{self._path}' is damaged ({error}); it was set aside as '{target}', and "
            "a new one begun"
        )


_DATABASES: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
