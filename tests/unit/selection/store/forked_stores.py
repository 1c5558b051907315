"""What the tests of stores in forked processes share."""

from __future__ import annotations

import os
from collections.abc import Callable

from bestof.selection.store.postgresql import PostgresqlStore
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore


def record(problem: str) -> Record:
    return Record("s", problem, "h", "a", (Evidence("a", "1", (1.0,)),), 1.0)


def save(store: PostgresqlStore | SqliteStore, name: str) -> None:
    """Save a record, and wait until it is written."""
    store.save(record(name))
    assert store.flush(60.0)


def started(work: Callable[[], object]) -> int:
    """Fork a child that runs `work`. It ends with the status 1 if `work` raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def status_of(child: int) -> int:
    return os.waitpid(child, 0)[1]
