"""The tables of a SqliteStore, and how a record becomes rows and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from bestof.selection.record import Child, Evidence, Pin, Record
from bestof.selection.store.sqlite_file import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    check_identity,
    foreign,
)
from bestof.selection.store.storable import storable

# Evidence comes back in the order of its ids: an upsert keeps the id of a row.
_TABLES = (
    """CREATE TABLE record (
        id INTEGER PRIMARY KEY, selector TEXT NOT NULL, problem TEXT NOT NULL, host TEXT NOT NULL,
        decision TEXT, updated REAL NOT NULL, UNIQUE (selector, problem, host))""",
    """CREATE TABLE evidence (
        id INTEGER PRIMARY KEY, record INTEGER NOT NULL REFERENCES record (id), alternative TEXT NOT NULL,
        version TEXT NOT NULL, samples TEXT NOT NULL, disqualified TEXT, children TEXT NOT NULL,
        UNIQUE (record, alternative))""",
    "CREATE TABLE pin (selector TEXT NOT NULL, problem TEXT, host TEXT, alternative TEXT NOT NULL)",
)

_SAVE_RECORD = """INSERT INTO record (selector, problem, host, decision, updated) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (selector, problem, host) DO UPDATE SET
    decision = coalesce(excluded.decision, decision), updated = excluded.updated"""
_FIND_RECORD = "SELECT id FROM record WHERE selector = ? AND problem = ? AND host = ?"
_SAVE_EVIDENCE = """INSERT INTO evidence (record, alternative, version, samples, disqualified, children)
    VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (record, alternative) DO UPDATE SET
    version = excluded.version, samples = excluded.samples, disqualified = excluded.disqualified,
    children = excluded.children
    WHERE excluded.samples <> '[]' OR excluded.disqualified IS NOT NULL OR excluded.version <> version"""
_WITHDRAW = "UPDATE record SET decision = NULL WHERE id = ? AND decision = ?"
_LOAD = """SELECT r.selector, r.problem, r.host, r.decision, r.updated,
    e.alternative, e.version, e.samples, e.disqualified, e.children
    FROM record r LEFT JOIN evidence e ON e.record = r.id """
_LOAD_ONE = _LOAD + "WHERE r.selector = ? AND r.problem = ? AND r.host = ? ORDER BY e.id"
_LOAD_ALL = (
    _LOAD + "WHERE ?1 IS NULL OR r.selector = ?1 ORDER BY r.selector, r.problem, r.host, e.id"
)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the database is ours and of this schema; creates the tables in an empty one.

    The identity is committed before the switch to WAL, so that the header of the file itself
    carries it, and never only a journal.
    """
    application_id, schema_version = _identity(connection)
    if application_id == 0:
        connection.execute("BEGIN IMMEDIATE")
        application_id, schema_version = _identity(
            connection
        )  # another process may have been faster
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
    """Save one record, by the rule of `Record.absorb`, within the transaction that is open."""
    key = tuple(storable(text) for text in record.key)
    decision = None if record.decision is None else storable(record.decision)
    connection.execute(_SAVE_RECORD, (*key, decision, record.updated))
    (number,) = connection.execute(_FIND_RECORD, key).fetchone()
    rows = [
        (
            number,
            storable(item.alternative),
            storable(item.version),
            json.dumps(item.samples, separators=(",", ":")),
            None if item.disqualified is None else storable(item.disqualified),
            json.dumps([(child.selector, child.problem) for child in item.children])
            if item.children
            else "[]",
        )
        for item in record.evidence
    ]
    connection.executemany(_SAVE_EVIDENCE, rows)
    gone = [(number, row[1]) for row in rows if row[4] is not None]
    if gone:
        connection.executemany(_WITHDRAW, gone)


def read_record(
    connection: sqlite3.Connection, selector: str, problem: str, host: str
) -> Record | None:
    """The record of one problem, in one query, so that it is of one moment."""
    key = tuple(storable(text) for text in (selector, problem, host))
    found = _records(connection.execute(_LOAD_ONE, key).fetchall())
    return found[0] if found else None


def read_records(connection: sqlite3.Connection, selector: str | None) -> list[Record]:
    """Every record, sorted: SQLite compares UTF-8 bytes, which gives the order of Python's
    strings."""
    name = None if selector is None else storable(selector)
    return _records(connection.execute(_LOAD_ALL, (name,)).fetchall())


def delete_records(
    connection: sqlite3.Connection, selector: str | None
) -> set[tuple[str, str, str]]:
    """Remove records with their evidence; return their keys."""
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
    """Keep a pin in place of the one with the same selector, problem and host."""
    delete_pin(connection, pin.selector, pin.problem, pin.host)
    connection.execute(
        "INSERT INTO pin VALUES (?, ?, ?, ?)",
        (pin.selector, pin.problem, pin.host, pin.alternative),
    )


def delete_pin(
    connection: sqlite3.Connection, selector: str, problem: str | None, host: str | None
) -> bool:
    """Forget a pin; whether there was one."""
    key = (selector, problem, host)
    return (
        connection.execute(
            "DELETE FROM pin WHERE selector = ? AND problem IS ? AND host IS ?", key
        ).rowcount
        > 0
    )


def read_pins(connection: sqlite3.Connection, selector: str | None) -> list[Pin]:
    """Every pin, in no order."""
    query = "SELECT selector, alternative, problem, host FROM pin WHERE ?1 IS NULL OR selector = ?1"
    name = None if selector is None else storable(selector)
    return [Pin(*row) for row in connection.execute(query, (name,)).fetchall()]


def _records(rows: Iterable[tuple[object, ...]]) -> list[Record]:
    heads: dict[tuple[str, str, str], tuple[str | None, float]] = {}
    evidence: dict[tuple[str, str, str], list[Evidence]] = {}
    for row in rows:
        (
            selector,
            problem,
            host,
            decision,
            updated,
            alternative,
            version,
            samples,
            disqualified,
            children,
        ) = row
        texts = (selector, problem, host)
        if not (
            _are_texts(*texts) and isinstance(decision, str | None) and isinstance(updated, float)
        ):
            raise sqlite3.DatabaseError("a row of the table 'record' cannot be read")
        key = (str(selector), str(problem), str(host))
        heads[key] = (decision, updated)
        items = evidence.setdefault(key, [])
        if alternative is None:
            continue  # a record without evidence
        if not (
            _are_texts(alternative, version, samples, children)
            and isinstance(disqualified, str | None)
        ):
            raise sqlite3.DatabaseError("a row of the table 'evidence' cannot be read")
        try:
            times = tuple(map(float, json.loads(str(samples))))
            pairs = tuple(Child(str(name), str(text)) for name, text in json.loads(str(children)))
        except (ValueError, TypeError, RecursionError) as error:
            raise sqlite3.DatabaseError("a row of the table 'evidence' cannot be read") from error
        items.append(Evidence(str(alternative), str(version), times, disqualified, pairs))
    return [Record(*key, *head[:1], tuple(evidence[key]), head[1]) for key, head in heads.items()]


def _are_texts(*values: object) -> bool:
    return all(type(value) is str for value in values)
