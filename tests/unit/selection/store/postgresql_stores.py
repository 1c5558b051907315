"""Fill and read a store on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence

from stored_records import RECORDS

from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.record import Record


def write(url: str, records: Sequence[Record] = RECORDS) -> None:
    """Save records through a store of their own."""
    store = PostgresqlStore(url)
    try:
        store.unite(records)
    finally:
        store.close()


def read(url: str) -> list[Record]:
    """Return every record, through a store of its own."""
    store = PostgresqlStore(url)
    try:
        return store.contents()[0]
    finally:
        store.close()
