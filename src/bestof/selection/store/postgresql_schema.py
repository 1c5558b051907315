"""The tables of a store on PostgreSQL, and the conversion between records and rows.

All text is stored as ASCII with Python's escapes, such as `\\xfc` for the letter u with two dots.
So any encoding of the database can hold it, and so can NUL and lone surrogates. Evidence is one
JSON text. The key of a row is a hash, because PostgreSQL's indexes hold no texts above 2.7 KB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any

from bestof.errors import StoreError
from bestof.selection.store.parsed_evidence import parsed_evidence
from bestof.selection.store.pin_order import without_repetitions
from bestof.selection.store.postgresql_session import Session
from bestof.selection.store.record import Pin, Record

SCHEMA = "bestof"

# The statements that lead from schema version n to n + 1. Never change a step, add one.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE bestof.record (
            key text PRIMARY KEY, selector text NOT NULL, problem text NOT NULL,
            host text NOT NULL, decision text, updated double precision NOT NULL,
            evidence text NOT NULL)""",
        "CREATE INDEX record_selector ON bestof.record USING hash (selector)",
        """CREATE TABLE bestof.pin (
            key text PRIMARY KEY, selector text NOT NULL, problem text, host text,
            alternative text NOT NULL)""",
        "CREATE INDEX pin_selector ON bestof.pin USING hash (selector)",
    ),
    ("CREATE INDEX record_problem ON bestof.record USING hash (problem)",),
)

_LOCK = 0x62657374  # "best": processes that make or migrate the tables take turns
_MOST_ROWS = 1000  # in one statement
_COLUMNS = "selector, problem, host, decision, updated, evidence"
_ROWS = """json_to_recordset(%s::json) AS new (key text, selector text, problem text, host text,
    decision text, updated double precision, evidence text)"""

_ESCAPED = re.compile(
    r"(?:[^\\]|\\[\\tnr]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*", re.DOTALL
)

Key = tuple[str, str, str]


def version(session: Session) -> int:
    """Return the version of the tables, or 0 if there are none.

    Raises StoreError if they are of a newer bestof or of another program.
    """
    tables = session.tables(SCHEMA)
    if "schema_version" not in tables:
        if tables:
            raise StoreError(
                f"{session.title} cannot be used: the schema '{SCHEMA}' of this database belongs "
                "to another program; it was not changed; name another database"
            )
        return 0
    found = session.run("SELECT version FROM bestof.schema_version")
    number = int(found[0][0]) if len(found) == 1 else 0
    if number < 1:
        raise StoreError(
            f"{session.title} is damaged: the table bestof.schema_version must hold one row with "
            "a version above 0; it was not changed; let the owner restore it, or drop the schema"
        )
    if number > len(STEPS):
        raise StoreError(
            f"{session.title} has schema version {number}, and this bestof knows versions up to "
            f"{len(STEPS)}; it was not changed; use a newer bestof, or name another store in "
            "BESTOF_STORE"
        )
    return number


def migrate(session: Session) -> None:
    """Bring the tables to the newest version, in one transaction."""
    with session.transaction():
        session.run("SELECT pg_catalog.pg_advisory_xact_lock(%s)", _LOCK)
        done = version(session)  # another process may have done it meanwhile
        if done == 0:
            if not session.run("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", SCHEMA):
                session.run("CREATE SCHEMA bestof")
            session.run("CREATE TABLE bestof.schema_version (version integer NOT NULL)")
        for step in STEPS[done:]:
            for statement in step:
                session.run(statement)
        session.run("DELETE FROM bestof.schema_version")
        session.run("INSERT INTO bestof.schema_version VALUES (%s)", len(STEPS))


# Records


def read_record(session: Session, key: Key, damaged: Callable[[str], None]) -> Record | None:
    """Return one record, or None. `damaged` is called with the reason if it cannot be read."""
    query = f"SELECT {_COLUMNS} FROM bestof.record WHERE key = %s"
    found = _readable(session.run(query, _digest(*key)), damaged)
    return found[0] if found and found[0].key == key else None


def read_elsewhere(session: Session, key: Key, damaged: Callable[[str], None]) -> Record | None:
    """Return the newest decided record of a problem on another host than `key` names."""
    query = f"""SELECT {_COLUMNS} FROM bestof.record WHERE selector = %s AND problem = %s
        AND host <> %s AND decision IS NOT NULL ORDER BY updated DESC, host LIMIT 1"""
    found = _readable(session.run(query, *map(_escaped, key)), damaged)
    return found[0] if found else None


def read_records(
    session: Session, selector: str | None, damaged: Callable[[str], None]
) -> list[Record]:
    """Return every readable record, or those of one selector, sorted."""
    if selector is None:
        rows = session.run(f"SELECT {_COLUMNS} FROM bestof.record")
    else:
        query = f"SELECT {_COLUMNS} FROM bestof.record WHERE selector = %s"
        rows = session.run(query, _escaped(selector))
    return sorted(_readable(rows, damaged), key=lambda record: record.key)


def change_records(
    session: Session,
    new: Mapping[Key, Sequence[Record]],
    change: Callable[[Record, Sequence[Record]], Record],
    damaged: Callable[[str], None],
) -> None:
    """Replace the record of each key by `change(old, new[key])`, inside the open transaction.

    First the missing rows are made, then all are locked, in the order of their keys. So processes
    that change the same records wait for each other, and do not lock each other out. Many records
    take several statements, because the server limits the time of each.
    """
    keys = list(new)
    for begin in range(0, len(keys), _MOST_ROWS):
        some = {key: new[key] for key in keys[begin : begin + _MOST_ROWS]}
        _change_some(session, some, change, damaged)


def _change_some(
    session: Session,
    new: Mapping[Key, Sequence[Record]],
    change: Callable[[Record, Sequence[Record]], Record],
    damaged: Callable[[str], None],
) -> None:
    empty = {key: Record(*key, None, (), new[key][0].updated) for key in new}
    made = json.dumps([_row(empty[key]) for key in new])
    session.run(
        f"""INSERT INTO bestof.record SELECT key, selector, problem, host, decision, updated,
        evidence FROM {_ROWS} ORDER BY key ON CONFLICT (key) DO NOTHING""",
        made,
    )
    rows = session.run(
        f"""SELECT {_COLUMNS} FROM bestof.record WHERE key IN (SELECT key FROM {_ROWS})
        ORDER BY key FOR UPDATE""",
        made,
    )
    old = {record.key: record for record in _readable(rows, damaged)}
    changed = [change(old.get(key, empty[key]), new[key]) for key in new]
    session.run(
        f"""UPDATE bestof.record AS old SET selector = new.selector, problem = new.problem,
        host = new.host, decision = new.decision, updated = new.updated, evidence = new.evidence
        FROM {_ROWS} WHERE old.key = new.key""",
        json.dumps([_row(record) for record in changed]),
    )


def delete_records(session: Session, selector: str | None) -> set[Key]:
    """Remove records. Return their keys."""
    query = "DELETE FROM bestof.record"
    values: tuple[object, ...] = ()
    if selector is not None:
        query, values = f"{query} WHERE selector = %s", (_escaped(selector),)
    rows = session.run(f"{query} RETURNING selector, problem, host", *values)
    return {(_shown(row[0]), _shown(row[1]), _shown(row[2])) for row in rows}


# Pins


def write_pin(session: Session, pin: Pin) -> None:
    """Save a pin. It replaces the one with the same selector, problem and host."""
    session.run(
        """INSERT INTO bestof.pin (key, selector, problem, host, alternative)
        VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (key) DO UPDATE SET alternative = excluded.alternative""",
        _digest(pin.selector, pin.problem, pin.host),
        _escaped(pin.selector),
        None if pin.problem is None else _escaped(pin.problem),
        None if pin.host is None else _escaped(pin.host),
        _escaped(pin.alternative),
    )


def delete_pin(session: Session, selector: str, problem: str | None, host: str | None) -> bool:
    """Remove a pin. Return whether there was one."""
    query = "DELETE FROM bestof.pin WHERE key = %s RETURNING key"
    return bool(session.run(query, _digest(selector, problem, host)))


def read_pins(session: Session, selector: str | None, damaged: Callable[[str], None]) -> list[Pin]:
    """Return every readable pin, or those of one selector, in no order."""
    query = "SELECT selector, alternative, problem, host FROM bestof.pin"
    if selector is None:
        rows = session.run(query)
    else:
        rows = session.run(f"{query} WHERE selector = %s", _escaped(selector))
    pins = []
    for row in rows:
        try:
            pins.append(_pin(*row))
        except ValueError as error:
            damaged(f"the pin of {row[0]:.200} ({error})")
    return without_repetitions(pins, lambda pin: damaged(f"a second pin of {pin.selector:.200}"))


# Conversion


def _digest(*texts: str | None) -> str:
    """Return the key of a row. No two lists of texts have the same JSON."""
    return sha256(json.dumps(texts).encode()).hexdigest()


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _plain(text: str) -> str:
    """Return the text that was escaped. Raises ValueError if it is damaged."""
    if "\\" in text and not _ESCAPED.fullmatch(text):
        raise ValueError("a text has a wrong escape")  # Python only warns of it
    return text.encode("ascii").decode("unicode_escape")


def _shown(text: str) -> str:
    """Return the text that was escaped, or the text itself if it is damaged."""
    try:
        return _plain(text)
    except ValueError:
        return text


def _pin(selector: str, alternative: str, problem: str | None, host: str | None) -> Pin:
    return Pin(
        _plain(selector),
        _plain(alternative),
        None if problem is None else _plain(problem),
        None if host is None else _plain(host),
    )


def _row(record: Record) -> dict[str, object]:
    evidence = [
        [
            item.alternative,
            item.version,
            item.samples,
            item.disqualified,
            [(child.selector, child.problem) for child in item.children],
        ]
        for item in record.evidence
    ]
    return {
        "key": _digest(*record.key),
        "selector": _escaped(record.selector),
        "problem": _escaped(record.problem),
        "host": _escaped(record.host),
        "decision": None if record.decision is None else _escaped(record.decision),
        "updated": record.updated,
        "evidence": json.dumps(evidence, separators=(",", ":")),
    }


def _readable(rows: Iterable[Sequence[Any]], damaged: Callable[[str], None]) -> list[Record]:
    """Return the records of these rows without those that cannot be read."""
    records = []
    for row in rows:
        try:
            records.append(_record(row))
        except (ValueError, RecursionError) as error:
            damaged(f"the record of {row[0]:.200}, problem {row[1]:.200} ({error})")
    return records


def _record(row: Sequence[Any]) -> Record:
    """Return the record in a row. Raises ValueError if it cannot be read."""
    selector, problem, host, decision, updated, evidence = row
    items = json.loads(evidence)
    if type(items) is not list or any(type(item) is not list or len(item) != 5 for item in items):
        raise ValueError("the evidence is no list of rows")
    if not isfinite(updated):
        raise ValueError("the time is not finite")
    return Record(
        _plain(selector),
        _plain(problem),
        _plain(host),
        None if decision is None else _plain(decision),
        tuple(parsed_evidence(*item) for item in items),
        float(updated),
    )
