"""The tables of a SqliteStore, and the conversion between records and rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from bestof.selection.store.parsed_evidence import parsed_evidence
from bestof.selection.store.pin_order import without_repetitions
from bestof.selection.store.record import Evidence, Pin, Record
from bestof.selection.store.sqlite_file import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Damage,
    check_identity,
    foreign,
)
from bestof.selection.store.storable import storable

_COMPACT = json.JSONEncoder(separators=(",", ":")).encode
_MOST_SHOWN = 200  # characters of a name in a message

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
    e.alternative, e.version, e.samples, e.disqualified, e.children, e.id
    FROM record r LEFT JOIN evidence e ON e.record = r.id """
_LOAD_ONE = _LOAD + "WHERE r.selector = ? AND r.problem = ? AND r.host = ? ORDER BY e.id"
_LOAD_ELSEWHERE = (
    _LOAD
    + """WHERE r.id = (SELECT id FROM record WHERE selector = ? AND problem = ? AND host <> ?
    AND decision IS NOT NULL ORDER BY updated DESC, host LIMIT 1) ORDER BY e.id"""
)
_LOAD_ALL = (
    _LOAD + "WHERE r.selector IS ifnull(?, r.selector) ORDER BY r.selector, r.problem, r.host, e.id"
)

_LOAD_PINS = "SELECT selector, alternative, problem, host FROM pin "
QUERIES = (f"{_LOAD}LIMIT 0", f"{_LOAD_PINS}LIMIT 0")
"""Queries that are possible in every store."""

_Tell = Callable[[str], None]
"""Is called with the name of a row that cannot be read."""


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
    number: Any

    @property
    def key(self) -> tuple[str, str, str] | None:
        """Return the key of the record, or None if its row cannot be read."""
        key = (self.selector, self.problem, self.host)
        if (
            _are_texts(*key)
            and isinstance(self.decision, str | None)
            and isinstance(self.updated, float)
            and isfinite(self.updated)
        ):
            return key
        return None

    @property
    def evidence(self) -> _EvidenceRow:
        return _EvidenceRow(
            self.alternative, self.version, self.samples, self.disqualified, self.children
        )


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
            _refuse_tables(connection, path)
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            application_id, schema_version = APPLICATION_ID, SCHEMA_VERSION
        connection.execute("COMMIT")
    elif application_id != APPLICATION_ID:
        _refuse_tables(connection, path)
    check_identity(path, application_id, schema_version)
    if schema_version != SCHEMA_VERSION:
        raise Damage(f"there is no schema version {schema_version}")


def _refuse_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if a database without bestof's identity has tables of another program.

    Raises Damage if it has the tables of a store: then the identity was overwritten.
    """
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    found = {name for (name,) in connection.execute(query)}
    if found == {"record", "evidence", "pin"}:
        raise Damage("its header was overwritten")
    if found or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise foreign(path)


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (schema_version,) = connection.execute("PRAGMA user_version").fetchone()
    return application_id, schema_version


def write_record(connection: sqlite3.Connection, record: Record, tell: _Tell) -> None:
    """Save one record by the rule of `Record.absorb`, inside the open transaction.

    The record is read back before the transaction ends, because SQLite writes to some damaged files
    without an error. Raises Damage if the file does not return what was written. Rows that could
    not be read are replaced or removed.
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
    back = [_Row(*row) for row in _fetched(connection, _LOAD_ONE, key)]
    if back and not isinstance(back[0].decision, str | None):  # an old one, without a new one
        connection.execute("UPDATE record SET decision = NULL WHERE id = ?", (number,))
        back = [row._replace(decision=None) for row in back]
    # A row without samples and without a reason does not replace an older one.
    last = {row.alternative: row for row in rows}
    sure = {row for row in last.values() if row.samples != "[]" or row.disqualified is not None}
    names = {row.alternative for row in sure}
    # Equal rows are not parsed, which would take twice as long as the write.
    others = [row for row in back if row.alternative not in names]
    unreadable = [row for row in others if row.number is not None and _evidence(row) is None]
    if unreadable:
        tell(_record_name(unreadable[0]))
        numbers = [(row.number,) for row in unreadable]
        connection.executemany("DELETE FROM evidence WHERE id = ?", numbers)
    if not (
        back
        and back[0].key == key
        and {row.evidence for row in back if row.alternative in names} == sure
        and not (found is None and any(row.alternative not in {None, *last} for row in others))
    ) or (decision and back[0].decision != left):
        raise Damage("a record that was written cannot be read back")


def _evidence_row(item: Evidence) -> _EvidenceRow:
    children = [(child.selector, child.problem) for child in item.children]
    return _EvidenceRow(
        storable(item.alternative),
        storable(item.version),
        _COMPACT(item.samples),
        None if item.disqualified is None else storable(item.disqualified),
        json.dumps(children) if children else "[]",
    )


def read_record(
    connection: sqlite3.Connection, key: tuple[str, str, str], tell: _Tell
) -> Record | None:
    """Return the record of one problem. One query gives a consistent state.

    A record that cannot be read counts as absent, and `tell` is called with its name.
    """
    return _read_one(connection, _LOAD_ONE, key, tell)


def read_elsewhere(
    connection: sqlite3.Connection, key: tuple[str, str, str], tell: _Tell
) -> Record | None:
    """Return the newest decided record of a problem on another host than `key` names."""
    return _read_one(connection, _LOAD_ELSEWHERE, key, tell)


def _read_one(
    connection: sqlite3.Connection, query: str, texts: tuple[str, str, str], tell: _Tell
) -> Record | None:
    key = tuple(storable(text) for text in texts)
    found = _records(_fetched(connection, query, key), tell)
    return found[0] if found else None


def read_records(connection: sqlite3.Connection, selector: str | None, tell: _Tell) -> list[Record]:
    """Return every readable record, sorted.

    SQLite compares UTF-8 bytes, which gives the same order as Python's strings.
    """
    name = None if selector is None else storable(selector)
    return _records(_fetched(connection, _LOAD_ALL, (name,)), tell)


def _fetched(
    connection: sqlite3.Connection, query: str, values: Sequence[object]
) -> list[tuple[Any, ...]]:
    """Return the rows of a query. A text that is no UTF-8 comes as bytes."""
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "not decode to UTF-8" not in str(error):
            raise
    connection.text_factory = _decoded
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.text_factory = str


def _decoded(text: bytes) -> str | bytes:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text


def delete_records(
    connection: sqlite3.Connection, selector: str | None
) -> set[tuple[str, str, str]]:
    """Remove records with their evidence. Return their keys."""
    which = "WHERE selector IS ifnull(?, selector)"
    name = None if selector is None else storable(selector)
    keys = _fetched(connection, f"SELECT selector, problem, host FROM record {which}", (name,))
    gone = {(str(row[0]), str(row[1]), str(row[2])) for row in keys}
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
        (*_place(pin.selector, pin.problem, pin.host), storable(pin.alternative)),
    )


def delete_pin(
    connection: sqlite3.Connection, selector: str, problem: str | None, host: str | None
) -> bool:
    """Remove a pin. Return whether there was one."""
    key = _place(selector, problem, host)
    return (
        connection.execute(
            "DELETE FROM pin WHERE selector = ? AND problem IS ? AND host IS ?", key
        ).rowcount
        > 0
    )


def _place(*texts: str | None) -> tuple[str | None, ...]:
    return tuple(None if text is None else storable(text) for text in texts)


def read_pins(connection: sqlite3.Connection, selector: str | None, tell: _Tell) -> list[Pin]:
    """Return every readable pin, or those of one selector, in no order."""
    name = None if selector is None else storable(selector)
    pins = []
    query = f"{_LOAD_PINS}WHERE selector IS ifnull(?, selector)"
    for row in _fetched(connection, query, (name,)):
        selector_, alternative, problem, host = row
        if _are_texts(selector_, alternative) and all(
            isinstance(text, str | None) for text in (problem, host)
        ):
            pins.append(Pin(*row))
        else:
            tell(f"the pin of {_short(selector_)}")
    return without_repetitions(pins, lambda pin: tell(f"a second pin of {_short(pin.selector)}"))


def _records(rows: Iterable[tuple[Any, ...]], tell: _Tell) -> list[Record]:
    """Return the records of these rows, each at the place of its first row.

    A record is left out if any of its rows cannot be read.
    """
    heads: dict[tuple[str, str, str], _Row] = {}
    evidence: dict[tuple[str, str, str], list[Evidence]] = {}
    unreadable: set[tuple[str, str, str]] = set()
    for row in map(_Row._make, rows):
        key = row.key
        if key is None:
            tell(_record_name(row))
            continue
        heads[key] = row
        items = evidence.setdefault(key, [])
        if row.number is None:  # a record without evidence
            continue
        item = _evidence(row)
        if item is None:
            unreadable.add(key)
            tell(_record_name(row))
        else:
            items.append(item)
    return [
        Record(*key, head.decision, tuple(evidence[key]), head.updated)
        for key, head in heads.items()
        if key not in unreadable
    ]


def _evidence(row: _Row) -> Evidence | None:
    """Return the evidence in a row, or None if it cannot be read."""
    if not _are_texts(row.samples, row.children):
        return None
    try:
        samples = json.loads(row.samples)
        children = json.loads(row.children) if row.children != "[]" else []
        return parsed_evidence(row.alternative, row.version, samples, row.disqualified, children)
    except (ValueError, RecursionError):
        return None


def _record_name(row: _Row) -> str:
    return f"the record of {_short(row.selector)}, problem {_short(row.problem)}"


def _short(value: object) -> str:
    """Return a value for a message; one that is no text as Python writes it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _are_texts(*values: object) -> bool:
    return all(type(value) is str for value in values)
