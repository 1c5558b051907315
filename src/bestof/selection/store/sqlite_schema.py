"""The tables of a SqliteStore, and the conversion between records and rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bestof.selection.record import Child, Evidence, Pin, Record
from bestof.selection.store.sqlite_file import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    check_identity,
    foreign,
)
from bestof.selection.store.storable import storable

# Evidence is read in the order of its ids. An upsert keeps the id of a row.
_TABLES = (
    """CREATE TABLE record (
        id INTEGER PRIMARY KEY, selector TEXT NOT NULL, problem TEXT NOT NULL, host TEXT NOT NULL,
        decision TEXT, updated REAL NOT NULL, UNIQUE (selector, problem, host))""",
    """CREATE TABLE evidence (
        id INTEGER PRIMARY KEY, record INTEGER NOT NULL REFERENCES record (id),
        alternative TEXT NOT NULL, version TEXT NOT NULL, samples TEXT NOT NULL,
        disqualified TEXT, children TEXT NOT NULL,
        UNIQUE (record, alternative))""",
    "CREATE TABLE pin (selector TEXT NOT NULL, problem TEXT, host TEXT, alternative TEXT NOT NULL)",
)

_SAVE_RECORD = """
    INSERT INTO record (selector, problem, host, decision, updated) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (selector, problem, host) DO UPDATE SET
    decision = coalesce(excluded.decision, decision), updated = excluded.updated"""
_FIND_RECORD = "SELECT id FROM record WHERE selector = ? AND problem = ? AND host = ?"
_SAVE_EVIDENCE = """
    INSERT INTO evidence (record, alternative, version, samples, disqualified, children)
    VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (record, alternative) DO UPDATE SET
    version = excluded.version, samples = excluded.samples, disqualified = excluded.disqualified,
    children = excluded.children
    WHERE excluded.samples <> '[]' OR excluded.disqualified IS NOT NULL
    OR excluded.version <> version"""
_WITHDRAW = "UPDATE record SET decision = NULL WHERE id = ? AND decision = ?"
_LOAD = """SELECT r.selector, r.problem, r.host, r.decision, r.updated,
    e.alternative, e.version, e.samples, e.disqualified, e.children
    FROM record r LEFT JOIN evidence e ON e.record = r.id """
_LOAD_ONE = _LOAD + "WHERE r.selector = ? AND r.problem = ? AND r.host = ? ORDER BY e.id"
_LOAD_ELSEWHERE = (
    _LOAD
    + """WHERE r.id = (SELECT id FROM record WHERE selector = ? AND problem = ? AND host <> ?
    AND decision IS NOT NULL ORDER BY updated DESC, host LIMIT 1) ORDER BY e.id"""
)
_LOAD_ALL = (
    _LOAD + "WHERE ?1 IS NULL OR r.selector = ?1 ORDER BY r.selector, r.problem, r.host, e.id"
)


class _EvidenceRow(NamedTuple):
    """The columns of `evidence` that a user's data fills."""

    alternative: str
    version: str
    samples: str
    disqualified: str | None
    children: str


class _Row(NamedTuple):
    """A row of `_LOAD`. In a damaged file, its values may have any type."""

    selector: Any
    problem: Any
    host: Any
    decision: Any
    updated: Any
    alternative: Any
    version: Any
    samples: Any
    disqualified: Any
    children: Any

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key of the record. Raises DatabaseError if the row is damaged."""
        key = (self.selector, self.problem, self.host)
        if not (
            _are_texts(*key)
            and isinstance(self.decision, str | None)
            and isinstance(self.updated, float)
        ):
            raise _unreadable("record")
        return key

    @property
    def evidence(self) -> _EvidenceRow:
        return _EvidenceRow(
            self.alternative, self.version, self.samples, self.disqualified, self.children
        )


def _unreadable(table: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"a row of the table '{table}' cannot be read")


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the database is a store of this schema. Create the tables in an empty one.

    The identity is committed before the switch to WAL, so that it is in the header of the file
    itself, not only in a journal.
    """
    application_id, schema_version = _identity(connection)
    if application_id == 0:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have made them meanwhile.
        application_id, schema_version = _identity(connection)
        if application_id == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise foreign(path)
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            application_id, schema_version = APPLICATION_ID, SCHEMA_VERSION
        connection.execute("COMMIT")
    check_identity(path, application_id, schema_version)
    if schema_version != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"there is no schema version {schema_version}")


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (schema_version,) = connection.execute("PRAGMA user_version").fetchone()
    return application_id, schema_version


def write_record(connection: sqlite3.Connection, record: Record) -> None:
    """Save one record by the rule of `Record.absorb`, inside the open transaction.

    The record is read back before the transaction ends, because SQLite writes to some damaged files
    without an error. Raises DatabaseError if the file does not return what was written.
    """
    key = tuple(storable(text) for text in record.key)
    decision = None if record.decision is None else storable(record.decision)
    found = connection.execute(_FIND_RECORD, key).fetchone()
    saved = connection.execute(_SAVE_RECORD, (*key, decision, record.updated))
    number = saved.lastrowid if found is None else found[0]
    rows = [_evidence_row(item) for item in record.evidence]
    connection.executemany(_SAVE_EVIDENCE, [(number, *row) for row in rows])
    gone = {row.alternative for row in rows if row.disqualified is not None}
    if gone:
        connection.executemany(_WITHDRAW, [(number, name) for name in gone])
    left = None if decision in gone else decision
    back = [_Row(*row) for row in connection.execute(_LOAD_ONE, key)]
    if not _holds(back, rows, is_new=found is None) or (decision and back[0].decision != left):
        raise sqlite3.DatabaseError("a record that was written cannot be read back")


def _holds(back: list[_Row], rows: list[_EvidenceRow], *, is_new: bool) -> bool:
    """Return whether rows that were read back hold what was written.

    Equal rows are not parsed, which would take twice as long as the write.
    """
    # A row without samples and without a reason does not replace an older one.
    last = {row.alternative: row for row in rows}
    sure = {row for row in last.values() if row.samples != "[]" or row.disqualified is not None}
    names = {row.alternative for row in sure}
    others = [row for row in back if row.alternative not in names]
    _records(others)  # this raises if a row cannot be read
    return (
        bool(back)
        and {row.evidence for row in back if row.alternative in names} == sure
        and not (is_new and any(row.alternative not in {None, *last} for row in others))
    )


def _evidence_row(item: Evidence) -> _EvidenceRow:
    children = [(child.selector, child.problem) for child in item.children]
    return _EvidenceRow(
        storable(item.alternative),
        storable(item.version),
        json.dumps(item.samples, separators=(",", ":")),
        None if item.disqualified is None else storable(item.disqualified),
        json.dumps(children) if children else "[]",
    )


def read_record(
    connection: sqlite3.Connection, selector: str, problem: str, host: str
) -> Record | None:
    """Return the record of one problem. One query gives a consistent state."""
    return _read_one(connection, _LOAD_ONE, (selector, problem, host))


def read_elsewhere(
    connection: sqlite3.Connection, selector: str, problem: str, host: str
) -> Record | None:
    """Return the newest decided record of a problem on another host."""
    return _read_one(connection, _LOAD_ELSEWHERE, (selector, problem, host))


def _read_one(
    connection: sqlite3.Connection, query: str, texts: tuple[str, str, str]
) -> Record | None:
    key = tuple(storable(text) for text in texts)
    found = _records(_Row(*row) for row in connection.execute(query, key).fetchall())
    return found[0] if found else None


def read_records(connection: sqlite3.Connection, selector: str | None) -> list[Record]:
    """Return every record, sorted.

    SQLite compares UTF-8 bytes, which gives the same order as Python's strings.
    """
    name = None if selector is None else storable(selector)
    return _records(_Row(*row) for row in connection.execute(_LOAD_ALL, (name,)).fetchall())


def delete_records(
    connection: sqlite3.Connection, selector: str | None
) -> set[tuple[str, str, str]]:
    """Remove records with their evidence. Return their keys."""
    which = "WHERE ?1 IS NULL OR selector = ?1"
    name = None if selector is None else storable(selector)
    keys = connection.execute(f"SELECT selector, problem, host FROM record {which}", (name,))
    gone = {(str(row[0]), str(row[1]), str(row[2])) for row in keys.fetchall()}
    connection.execute(
        f"DELETE FROM evidence WHERE record IN (SELECT id FROM record {which})", (name,)
    )
    connection.execute(f"DELETE FROM record {which}", (name,))
    return gone


def write_pin(connection: sqlite3.Connection, pin: Pin) -> None:
    """Save a pin. It replaces the one with the same selector, problem and host."""
    delete_pin(connection, pin.selector, pin.problem, pin.host)
    connection.execute(
        "INSERT INTO pin VALUES (?, ?, ?, ?)",
        (pin.selector, pin.problem, pin.host, pin.alternative),
    )


def delete_pin(
    connection: sqlite3.Connection, selector: str, problem: str | None, host: str | None
) -> bool:
    """Remove a pin. Return whether there was one."""
    key = (selector, problem, host)
    return (
        connection.execute(
            "DELETE FROM pin WHERE selector = ? AND problem IS ? AND host IS ?", key
        ).rowcount
        > 0
    )


def read_pins(connection: sqlite3.Connection, selector: str | None) -> list[Pin]:
    """Return every pin, or those of one selector, in no order."""
    query = "SELECT selector, alternative, problem, host FROM pin WHERE ?1 IS NULL OR selector = ?1"
    name = None if selector is None else storable(selector)
    return [Pin(*row) for row in connection.execute(query, (name,)).fetchall()]


def _records(rows: Iterable[_Row]) -> list[Record]:
    """Return the records of these rows, each at the place of its first row."""
    heads: dict[tuple[str, str, str], _Row] = {}
    evidence: dict[tuple[str, str, str], list[Evidence]] = {}
    for row in rows:
        key = row.key
        heads[key] = row
        items = evidence.setdefault(key, [])
        if row.alternative is not None:  # None: a record without evidence
            items.append(_evidence(row))
    return [
        Record(*key, head.decision, tuple(evidence[key]), head.updated)
        for key, head in heads.items()
    ]


def _evidence(row: _Row) -> Evidence:
    texts = (row.alternative, row.version, row.samples, row.children)
    if not (_are_texts(*texts) and isinstance(row.disqualified, str | None)):
        raise _unreadable("evidence")
    try:
        samples = tuple(map(float, json.loads(row.samples)))
        children = tuple(
            Child(str(selector), str(problem)) for selector, problem in json.loads(row.children)
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable("evidence") from error
    return Evidence(row.alternative, row.version, samples, row.disqualified, children)


def _are_texts(*values: object) -> bool:
    return all(type(value) is str for value in values)
