"""A store on a PostgreSQL server."""

from __future__ import annotations

from bestof.selection.store.deferred import DeferredStore
from bestof.selection.store.postgresql_database import PostgresqlDatabase
from bestof.selection.store.worker import Job


class PostgresqlStore(DeferredStore):
    """Keeps records on the server that `url` names; see DeferredStore and PostgresqlDatabase.

    The thread connects at once, while the program starts. Importing psycopg alone takes 0.2 to
    0.3 s.
    """

    def __init__(self, url: str) -> None:
        database = PostgresqlDatabase(url)
        super().__init__(database)
        self._worker.submit(Job(database.connect, 0.0))
