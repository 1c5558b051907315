"""A store in one SQLite file."""

from __future__ import annotations

import os

from bestof.selection.store.deferred import DeferredStore
from bestof.selection.store.sqlite_database import SqliteDatabase


class SqliteStore(DeferredStore):
    """Keeps records in the file at `path`; see DeferredStore and SqliteDatabase."""

    def __init__(self, path: str | os.PathLike[str], *, claimed: bool = False) -> None:
        super().__init__(SqliteDatabase(path, claimed=claimed))
