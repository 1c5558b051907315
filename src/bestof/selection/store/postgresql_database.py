"""Records and pins in a PostgreSQL database, which the machines of a fleet share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from bestof.selection.store import postgresql_schema as schema
from bestof.selection.store.damaged_rows import DamagedRows
from bestof.selection.store.database import Unavailable
from bestof.selection.store.merge import merge, pins_to_write
from bestof.selection.store.postgresql_session import Session, check_driver
from bestof.selection.store.postgresql_url import parse_server_url
from bestof.selection.store.record import Pin, Record

_T = TypeVar("_T")

_AWAY_SECONDS = 5.0  # after a failed connection, reads do not try for this long

_ABANDONED: list[Session] = []  # connections of a parent process; never closed here


class PostgresqlDatabase:
    """Reads and writes the schema `bestof` of a database, with one transaction for each change.

    The first use opens the connection, and migrates older tables. The first change makes tables
    if there are none. libpq finds the password: in the URL, in PGPASSWORD, or in ~/.pgpass.

    If the server has ended the connection since the last use, for example by a restart, the work is
    tried once more on a new one. While no connection can be made, reads fail at once for 5 s after
    each attempt, so that calls go on; writes have their own pauses (see Retry).
    """

    def __init__(self, url: str) -> None:
        """Check the URL. Raises StoreError if it is wrong, or if psycopg is not installed."""
        self._url = parse_server_url(url)
        check_driver(self._url)
        self._session: Session | None = None
        self._version = 0  # of the tables, as far as this connection knows
        self._away_until = 0.0
        self._away: Unavailable | None = None
        self._reached = False  # whether this process has ever had a connection
        self._lost = False  # whether the last failure was the end of the connection
        self.notices: list[str] = []
        self._tell_damaged = DamagedRows(self.title, self.notices).tell

    @property
    def url(self) -> str:
        """Return the URL without its password."""
        return self._url.shown

    @property
    def title(self) -> str:
        """Return the name for messages."""
        return f"the store '{self._url.shown}'"

    def connect(self) -> None:
        """Open a connection, and look at the tables. The first use would do it too."""
        self._read(schema.version, 0)

    def exists(self) -> bool:
        """Return True, because only the server knows."""
        return True

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return one record."""
        key = (selector, problem, host)
        return self._read(lambda s: schema.read_record(s, key, self._tell_damaged), None)

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host."""
        key = (selector, problem, host)
        return self._read(lambda s: schema.read_elsewhere(s, key, self._tell_damaged), None)

    def records(self, selector: str | None) -> list[Record]:
        """Return every record, or those of one selector, sorted."""
        return self._read(lambda s: schema.read_records(s, selector, self._tell_damaged), [])

    def pins(self, selector: str | None) -> list[Pin]:
        """Return every pin, or those of one selector, in no order."""
        return self._read(lambda s: schema.read_pins(s, selector, self._tell_damaged), [])

    def write(self, records: Sequence[Record]) -> None:
        """Save records in this order, by the rule of `Record.absorb`."""
        new: dict[schema.Key, list[Record]] = {}
        for record in records:
            new.setdefault(record.key, []).append(record)
        self._write(
            lambda s: schema.change_records(s, new, _absorbed, self._tell_damaged) if new else None
        )

    def pin(self, order: Pin) -> None:
        """Save a pin. It replaces the one with the same selector, problem and host."""
        self._write(lambda session: schema.write_pin(session, order))

    def unpin(self, selector: str, problem: str | None, host: str | None) -> bool:
        """Remove a pin. Return whether there was one."""
        return self._write(lambda s: schema.delete_pin(s, selector, problem, host))

    def clear(self, selector: str | None) -> set[schema.Key]:
        """Remove records. Return their keys."""
        return self._write(lambda session: schema.delete_records(session, selector))

    def unite(self, records: Sequence[Record], pins: Sequence[Pin], *, theirs: bool) -> int:
        """Merge records and pins into the database. Return how many of its pins stayed."""
        new: dict[schema.Key, list[Record]] = {}
        for record in records:
            new.setdefault(record.key, []).append(record)

        def action(session: Session) -> int:
            if new:
                schema.change_records(session, new, _merged, self._tell_damaged)
            ours = schema.read_pins(session, None, self._tell_damaged)
            written, stayed = pins_to_write(ours, pins, replace=theirs)
            for pin in written:
                schema.write_pin(session, pin)
            return stayed

        return self._write(action)

    def disconnect(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        session, self._session = self._session, None
        self._version = 0
        if session is not None:
            session.close()

    def abandon(self) -> None:
        """Drop the connection of the parent process."""
        if self._session is not None:
            _ABANDONED.append(self._session)
        self._session = None
        self._version = 0

    def _read(self, action: Callable[[Session], _T], nothing: _T) -> _T:
        if self._session is None and self._away is not None and time.monotonic() < self._away_until:
            raise self._away

        def read(session: Session) -> _T:
            if self._version == 0:
                self._version = schema.version(session)
            if 0 < self._version < len(schema.STEPS):
                schema.migrate(session)
                self._version = len(schema.STEPS)
            return action(session) if self._version else nothing

        return self._persist(read)

    def _write(self, action: Callable[[Session], _T]) -> _T:
        def write(session: Session) -> _T:
            if self._version < len(schema.STEPS):
                if schema.version(session) < len(schema.STEPS):
                    schema.migrate(session)
                self._version = len(schema.STEPS)
            with session.transaction():
                return action(session)

        return self._persist(write)

    def _persist(self, action: Callable[[Session], _T]) -> _T:
        """Run `action`. If the connection had been lost since its last use, run it on a new one.

        Whatever is raised, the connection is closed, and with it a transaction.
        """
        if self._session is not None:
            try:
                return self._run(action)
            except Unavailable:
                if not self._lost:
                    raise
        return self._run(action)

    def _run(self, action: Callable[[Session], _T]) -> _T:
        self._lost = False
        finished = False
        try:
            if self._session is None:
                self._session = self._connected()
            result = action(self._session)
            finished = True
            return result
        except Unavailable as error:
            error.passing = self._reached
            raise
        finally:
            if not finished:
                self._lost = self._session is not None and self._session.lost
                self.disconnect()

    def _connected(self) -> Session:
        try:
            session = Session(self._url)
        except Unavailable as error:
            self._away, self._away_until = error, time.monotonic() + _AWAY_SECONDS
            raise
        self._away = None
        self._reached = True
        return session


def _absorbed(old: Record, new: Sequence[Record]) -> Record:
    for record in new:
        old = old.absorb(record)
    return old


def _merged(old: Record, new: Sequence[Record]) -> Record:
    (merged,) = merge([old], new)
    return old.absorb(merged)
