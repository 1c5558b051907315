"""A store in one SQLite file, which many processes may share."""

from __future__ import annotations

import atexit
import os
import random
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bestof.errors import StoreError
from bestof.selection.record import Pin, Record
from bestof.selection.store import sqlite_schema as schema
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.pin_order import closest, sorted_pins
from bestof.selection.store.sqlite_file import (
    folder_lock,
    foreign,
    identity,
    is_busy,
    is_damaged,
    refuse_foreign,
    set_aside,
)

_T = TypeVar("_T")

_BUSY_SECONDS = 5.0  # SQLite waits this long by itself
_PATIENCE_SECONDS = (
    60.0  # and is asked again for this long: 200 processes at once wait less than 10 s
)


class SqliteStore:
    """Keeps records in the file at `path`: one transaction a save, in WAL mode.

    `synchronous=NORMAL`: what a returned `save` wrote survives the end of the process by any signal; the loss of power
    may take the last saves, and damages nothing. The connection is opened by the first use, closed before a fork, and
    opened anew in both processes. The file is created by the first save.

    StoreError at once where the file belongs to another program or to a newer bestof; `claimed` says that the path
    is bestof's own, so that even a file that is no database at all is a damaged one of ours. A damaged file is set
    aside, with a warning that names both paths, and the store goes on with a new one. What cannot be written (no
    permission, no space) is kept in memory, with one warning, and written by the next save that succeeds.
    """

    def __init__(self, path: str | os.PathLike[str], *, claimed: bool = False) -> None:
        self._path = Path(path).expanduser().absolute()
        self._claimed = claimed
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._process = os.getpid()
        self._unwritten = MemoryStore()
        self._warnings: list[str] = []
        self._has_warned = False
        self._closed = False
        refuse_foreign(self._path, claimed=claimed)
        _STORES.add(self)

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """The record of one problem, None where there is none."""
        kept = self._read(
            lambda connection: schema.read_record(connection, selector, problem, host)
        )
        newer = self._unwritten.load(selector, problem, host)
        return newer if kept is None else kept if newer is None else kept.absorb(newer)

    def save(self, record: Record) -> None:
        """Keep a record, by the rule of `Record.absorb`."""

        def write(connection: sqlite3.Connection) -> None:
            for waiting in self._unwritten.records():
                schema.write_record(connection, waiting)
            schema.write_record(connection, record)

        with self._lock:
            try:
                self._write(write)
                self._unwritten.clear()
            except (sqlite3.Error, OSError) as error:
                self._unwritten.save(record)
                self._warn_once(
                    f"cannot be written ({error}); new decisions are kept in memory, for this process"
                )
        self._announce()

    def records(self, selector: str | None = None) -> list[Record]:
        """Every record (of one selector, where named), sorted by selector, problem and host."""
        found = {
            record.key: record
            for record in self._read(lambda c: schema.read_records(c, selector)) or []
        }
        for newer in self._unwritten.records(selector):
            found[newer.key] = found[newer.key].absorb(newer) if newer.key in found else newer
        return [found[key] for key in sorted(found)]

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        """Order one alternative for a problem (None: every problem) on a host (None: every host)."""
        order = Pin(selector, alternative, problem, host)
        self._obey(lambda connection: schema.write_pin(connection, order))

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Take back the pin that was given with exactly these; whether there was one."""
        return self._obey(lambda connection: schema.delete_pin(connection, selector, problem, host))

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        """The alternative of the closest pin, None where there is none."""
        return closest(self._read(lambda c: schema.read_pins(c, selector)) or [], problem, host)

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Every pin (of one selector, where named), sorted; None comes first."""
        return sorted_pins(self._read(lambda c: schema.read_pins(c, selector)) or [])

    def clear(self, selector: str | None = None) -> int:
        """Forget every record (of one selector, where named), and no pin; how many were forgotten."""
        with self._lock:
            gone = {record.key for record in self._unwritten.records(selector)}
            gone |= {record.key for record in self.records(selector)}
            self._obey(lambda connection: schema.delete_records(connection, selector))
            self._unwritten.clear(selector)
            return len(gone)

    def close(self) -> None:
        """Close the connection; the store must not be used afterwards. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # not where __init__ raised
            self._disconnect()

    @property
    def url(self) -> str:
        """`sqlite:///` and the absolute path."""
        return f"sqlite:///{self._path}"

    def _read(self, action: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """What `action` reads; None where there is no file, or none that can be read."""
        found = None
        with self._lock:
            try:
                if self._connection is not None or self._path.exists():
                    found = self._persist(action)
            except (sqlite3.Error, OSError) as error:
                self._warn_once(f"cannot be read ({error}); decisions are made anew")
        self._announce()
        return found

    def _write(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        def transaction(connection: sqlite3.Connection) -> _T:
            connection.execute("BEGIN IMMEDIATE")
            result = action(connection)
            connection.execute("COMMIT")
            return result

        return self._persist(transaction)

    def _obey(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        """Carry out what a user ordered, or raise StoreError."""
        with self._lock:
            try:
                result = self._write(action)
            except (sqlite3.Error, OSError) as error:
                raise StoreError(
                    f"the store '{self._path}' cannot be written: {error}; nothing was changed"
                ) from error
        self._announce()
        return result

    def _persist(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `action`, again where the file was busy, and once more with a new file where it was damaged."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        rebuilt = False
        while True:
            try:
                return action(self._connected())
            except sqlite3.DatabaseError as error:
                self._roll_back()
                if is_busy(error) and time.monotonic() < deadline:
                    time.sleep(random.uniform(0.001, 0.02))
                elif is_damaged(error) and not rebuilt:
                    rebuilt = True
                    self._set_aside(error)
                else:
                    raise

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(
                f"the store '{self._path}' was closed, and is used again; open another"
            )
        if self._process != os.getpid():
            # A fork behind Python's back: the connection is the parent's, and even closing it could harm the file.
            if self._connection is not None:
                _ABANDONED.append(self._connection)
            self._connection, self._process = None, os.getpid()
        if self._connection is not None and self._identity != identity(self._path):
            self._disconnect()  # deleted, or set aside by another process: what is written there would be lost
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with folder_lock(self._path.parent):
                refuse_foreign(self._path, claimed=self._claimed)
                self._identity = identity(self._path)
                try:
                    self._connection = self._open(str(self._path))
                except sqlite3.OperationalError as error:
                    if is_busy(error) or is_damaged(error) or self._identity is None:
                        raise
                    self._connection = self._open_for_reading()
                self._identity = identity(self._path)
        return self._connection

    def _open(self, database: str, *, only_read: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            database,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=only_read,
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
        """In a folder where SQLite cannot make its shared memory, a file can only be read as one that never changes."""
        try:
            return self._open(f"{self._path.as_uri()}?mode=ro", only_read=True)
        except sqlite3.OperationalError:
            return self._open(f"{self._path.as_uri()}?mode=ro&immutable=1", only_read=True)

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.close()

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        self._disconnect()
        with folder_lock(self._path.parent):
            if identity(self._path) != self._identity:
                return  # another process did it
            target = set_aside(self._path)
        self._warnings.append(
            f"the store '{self._path}' is damaged ({error}); it was set aside as '{target}', and a new one begun"
        )

    def _warn_once(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warnings.append(
                f"the store '{self._path}' {what}; BESTOF_STORE names another store, or is 'off'"
            )

    def _announce(self) -> None:
        """Warn at the very end of a call, so that nothing is lost where warnings are errors."""
        while self._warnings:
            warnings.warn(self._warnings.pop(0), RuntimeWarning, stacklevel=3)


_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_ABANDONED: list[sqlite3.Connection] = []
_FORKING: list[SqliteStore] = []


def _before_fork() -> None:
    for store in list(_STORES):
        store._lock.acquire()
        store._disconnect()
        _FORKING.append(store)


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop()._lock.release()


def _after_fork_in_child() -> None:
    while _FORKING:
        _FORKING.pop()._lock = threading.RLock()


def _at_exit() -> None:
    # Not closed: evidence that is saved by a later exit function opens its store again.
    for store in list(_STORES):
        store._disconnect()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
