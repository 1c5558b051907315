"""A store on a PostgreSQL server."""

from __future__ import annotations

from bestof.selection.store.deferred import DeferredStore
from bestof.selection.store.postgresql_database import PostgresqlDatabase


class PostgresqlStore(DeferredStore):
    """Keeps records on the server that `url` names; see DeferredStore and PostgresqlDatabase."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresqlDatabase(url))
