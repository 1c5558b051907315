"""Records and pins in one SQLite file, which many processes may share."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bestof.errors import StoreError
from bestof.selection.store import sqlite_schema as schema
from bestof.selection.store.damaged_rows import DamagedRows
from bestof.selection.store.database import Unavailable
from bestof.selection.store.merge import merge, pins_to_write
from bestof.selection.store.network_file_system import is_shared
from bestof.selection.store.record import Pin, Record
from bestof.selection.store.sqlite_file import (
    Damage,
    FolderLock,
    Identity,
    check_place,
    damage_in,
    foreign,
    foreign_journal,
    identity,
    is_busy,
    mark,
    may_be_damaged,
    may_write,
    set_aside,
    share_journals,
)

_T = TypeVar("_T")

_ABANDONED: list[sqlite3.Connection] = []  # connections of a parent process; never closed here


class SqliteDatabase:
    """Reads and writes the file at `path`, with one transaction for each change.

    The file is in WAL mode. On a file system that several machines share, it has a rollback journal
    instead.

    With `synchronous=NORMAL`, written data survives any signal that ends the process. A power
    failure may lose the last changes, but damages nothing. The first use opens the connection, and
    the first change creates the file. Its folder must exist.

    If the file belongs to another program or to a newer bestof, the constructor raises StoreError.
    `claimed` says that the path is bestof's own: a file that is no database is then taken for a
    damaged one of bestof. A damaged file is renamed, with a warning that names both paths, and a
    new one is made. Before that, the damage is verified while no other process can make a new file.

    A row that cannot be read is left out, with a warning. The next decision replaces it.

    A process that may only read the file never makes a journal beside it, since the owner could not
    write that journal.

    SQLite never waits here. If another process has locked the file, Unavailable is raised at once.
    (On a file system without locks, SQLite itself tries for up to 10 s.)
    """

    def __init__(self, path: str | os.PathLike[str], *, claimed: bool = False) -> None:
        self._path = Path(path).expanduser().absolute()
        self._place = Path(os.path.realpath(self._path))  # of a link: journals lie beside the file
        self._claimed = claimed
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._only_read = False
        self._folder_lock = FolderLock(self._place.parent)
        self.notices: list[str] = []
        self._tell_row = DamagedRows(self.title, self.notices).tell
        _DATABASES.add(self)
        self._check_place()

    @property
    def url(self) -> str:
        """Return `sqlite:///` and the absolute path."""
        return f"sqlite:///{self._path}"

    @property
    def title(self) -> str:
        """Return the name for messages."""
        return f"the store '{self._path}'"

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self._connection is not None or os.path.exists(self._path)

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return one record, read in one query."""
        key = (selector, problem, host)
        return self._read(lambda c: schema.read_record(c, key, self._tell_row), None)

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host."""
        key = (selector, problem, host)
        return self._read(lambda c: schema.read_elsewhere(c, key, self._tell_row), None)

    def records(self, selector: str | None) -> list[Record]:
        """Return every record, or those of one selector, sorted."""
        return self._read(lambda c: schema.read_records(c, selector, self._tell_row), [])

    def pins(self, selector: str | None) -> list[Pin]:
        """Return every pin, or those of one selector, in no order."""
        return self._read(lambda c: schema.read_pins(c, selector, self._tell_row), [])

    def write(self, records: Sequence[Record]) -> None:
        """Save records in this order, by the rule of `Record.absorb`."""

        def action(connection: sqlite3.Connection) -> None:
            for record in records:
                schema.write_record(connection, record, self._tell_row)

        self._write(action)

    def pin(self, order: Pin) -> None:
        """Save a pin. It replaces the one with the same selector, problem and host."""
        self._write(lambda connection: schema.write_pin(connection, order))

    def unpin(self, selector: str, problem: str | None, host: str | None) -> bool:
        """Remove a pin. Return whether there was one."""
        return self._write(lambda c: schema.delete_pin(c, selector, problem, host))

    def clear(self, selector: str | None) -> set[tuple[str, str, str]]:
        """Remove records. Return their keys."""
        return self._write(lambda connection: schema.delete_records(connection, selector))

    def unite(self, records: Sequence[Record], pins: Sequence[Pin], *, theirs: bool) -> int:
        """Merge records and pins into the file. Return how many of its pins stayed."""

        def action(connection: sqlite3.Connection) -> int:
            came = {record.key for record in records}
            kept = schema.read_records(connection, None, self._tell_row)
            for record in merge((one for one in kept if one.key in came), records):
                schema.write_record(connection, record, self._tell_row)
            ours = schema.read_pins(connection, None, self._tell_row)
            written, stayed = pins_to_write(ours, pins, replace=theirs)
            for pin in written:
                schema.write_pin(connection, pin)
            return stayed

        return self._write(action)

    def disconnect(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Drop the connection of the parent process."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
        self._connection = None

    def _read(self, action: Callable[[sqlite3.Connection], _T], nothing: _T) -> _T:
        if not self.exists():
            return nothing
        return self._persist(action)

    def _write(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._only_read:
            # a new connection may find the permission or the disk space that was missing
            self.disconnect()

        def transaction(connection: sqlite3.Connection) -> _T:
            connection.execute("BEGIN IMMEDIATE")
            result = action(connection)
            connection.execute("COMMIT")
            return result

        return self._persist(transaction)

    def _persist(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `action`. If the file was damaged, run it once more with a new file.

        No transaction is left open, whatever is raised: a signal handler may raise at any moment.
        """
        finished = False
        try:
            for attempt in (1, 2):
                try:
                    result = action(self._connected())
                    finished = True
                    return result
                except UnicodeDecodeError as error:  # SQLite's message contains a damaged name
                    if attempt == 2:
                        raise Unavailable(str(error), busy=False) from error
                    self._set_aside(error)
                except sqlite3.DatabaseError as error:
                    if not may_be_damaged(error) or attempt == 2:
                        raise self._unavailable(error) from error
                    self._set_aside(error)
            raise AssertionError("the second attempt returns or raises")
        except OSError as error:  # of opening the file, or of renaming it
            raise Unavailable(str(error), busy=isinstance(error, BlockingIOError)) from error
        finally:
            if not finished:
                self._folder_lock.release()
                self._roll_back()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._connection.in_transaction:
            self._roll_back()  # a second exception interrupted the handling of the first
        if self._connection is not None:
            self._check_file()
        if self._connection is None:
            found = identity(self._path)
            with self._folder_lock.shared(found is not None and found.size > 0):
                self._check_place()
                self._identity = identity(self._path)
                self._only_read = self._identity is not None and not may_write(self._place)
                try:
                    if self._only_read:
                        self._connection = self._open_for_reading()
                    else:
                        self._connection = self._open(str(self._path))
                except sqlite3.OperationalError as error:
                    unusable = self._only_read or self._identity is None
                    if unusable or is_busy(error) or may_be_damaged(error):
                        raise
                    self._connection = self._open_for_reading()
                    self._only_read = True
                self._identity = identity(self._path)
        return self._connection

    def _check_place(self) -> None:
        """Raise StoreError if the file is not bestof's.

        The file is not read if this process has it open. It was checked then, and reading it again
        is dangerous: closing any descriptor of a file cancels the locks of its connections
        (https://sqlite.org/howtocorrupt.html, section 2.2).
        """
        here = identity(self._path)
        if here is None and self._identity is not None and not self._path.parent.is_dir():
            raise StoreError(
                f"the store '{self._path}' was deleted while it was in use, with its folder; make "
                f"the folder '{self._path.parent}' again"
            )
        for other in list(_DATABASES):
            known = other._identity
            if other._connection is not None and known is not None and known.is_that_of(here):
                return
        check_place(self._path, claimed=self._claimed)

    def _check_file(self) -> None:
        """Disconnect from a file that was deleted or renamed, because writes to it would be lost.

        Raises DatabaseError if the file was cut short. Files of bestof only grow, and SQLite may
        not notice this for a long time.
        """
        known, found = self._identity, identity(self._path)
        if known is None or not known.is_that_of(found):
            self.disconnect()
        elif found is not None and found.size < known.size:
            raise Damage(
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
                shared = is_shared(self._path)
                # A rollback journal that is not synchronized may be damaged by a power failure.
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if shared else 'WAL'}")
                connection.execute(f"PRAGMA synchronous = {'FULL' if shared else 'NORMAL'}")
                mark(self._place)
                share_journals(self._place)
            elif connection.execute("PRAGMA application_id").fetchone()[0] == 0:
                raise foreign(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_for_reading(self) -> sqlite3.Connection:
        """Return a connection that makes no file beside the database.

        SQLite makes missing journals even for a reader. If the writers' journals are not there, the
        file is read as one that never changes: what they have not moved into it is not seen.
        """
        url = self._place.as_uri()
        journals = [self._place.with_name(self._place.name + ending) for ending in ("-wal", "-shm")]
        if all(one.exists() for one in journals):
            try:
                return self._open(f"{url}?mode=ro&readonly_shm=1", only_read=True)
            except sqlite3.OperationalError:
                pass
        return self._open(f"{url}?mode=ro&immutable=1", only_read=True)

    def _unavailable(self, error: sqlite3.DatabaseError) -> Unavailable:
        """Return the error for the store, with what the user can do about a journal of others."""
        journal = foreign_journal(self._place) if "readonly" in str(error) else None
        more = ""
        if journal is not None and may_write(self._place):
            more = (
                f"; another user has made '{journal}', which this user may not write: delete it "
                "while no process uses the store"
            )
        return Unavailable(f"{error}{more}", busy=is_busy(error))

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except BaseException:
                self.disconnect()  # closing rolls back
                raise

    def _set_aside(self, error: Exception) -> None:
        """Rename the file if it is damaged.

        Raises Unavailable if SQLite finds nothing wrong with it now: a value was refused, or
        another process has restored the file.
        """
        self.disconnect()
        with self._folder_lock.shared(False):
            if self._identity is None or not self._identity.is_that_of(identity(self._path)):
                return  # another process has done it
            if not isinstance(error, Damage):
                try:
                    found = damage_in(self._place, schema.QUERIES)
                except sqlite3.DatabaseError as unclear:
                    raise self._unavailable(unclear) from error
                if found is None:
                    raise Unavailable(str(error), busy=False) from error
            target = set_aside(self._place)
        self.notices.append(
            f"the store '{self._path}' is damaged ({error}); it was renamed to '{target}', "
            "and a new one was made"
        )


_DATABASES: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
