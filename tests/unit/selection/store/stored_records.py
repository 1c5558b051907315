"""Records for tests of store files, and how to write them."""

from __future__ import annotations

from pathlib import Path

from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore

RECORDS = [
    Record(
        "s",
        f"({n},)",
        "h",
        "a",
        (Evidence("a", "1", (1.0, 2.0)), Evidence("b", "1", (3.0,))),
        float(n),
    )
    for n in range(40)
]


NEW = Record("s", "new", "h", "b", (Evidence("b", "1", (3.0,)),), 1.0)


def made(path: Path, records: list[Record] = RECORDS) -> bytes:
    store = SqliteStore(path)
    for record in records:
        store.save(record)
    store.close()
    return path.read_bytes()


def save_all(store: Store, records: list[Record]) -> bool:
    """Save, and wait; return whether all was written. (What went wrong is told by then.)"""
    for record in records:
        store.save(record)
    return store.flush(60.0)
