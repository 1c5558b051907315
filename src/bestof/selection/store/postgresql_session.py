"""A connection to a PostgreSQL server on which no wait lasts for ever.

This is the only module that uses psycopg. It imports psycopg with the first connection, in the
thread of the store: the import takes 0.2 s.
"""

from __future__ import annotations

import importlib.util
import os
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from bestof.distribution import install
from bestof.errors import StoreError
from bestof.selection.store.database import Unavailable
from bestof.selection.store.postgresql_url import ServerUrl

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import PQGen

Row = tuple[Any, ...]

CONNECT_SECONDS = 3
SILENT_SECONDS = 10.0  # a server that sends nothing for this long is given up
OLDEST_SERVER = 120000  # 12.0: the first that prints every float so that it reads back exactly

# The server ends a transaction whose client has stopped, so that its locks are free again.
_SETTINGS = (
    "SET statement_timeout = '10s'; SET lock_timeout = '5s'; "
    "SET idle_in_transaction_session_timeout = '10s'"
)

# Errors after which the same transaction may succeed at once: serialization and deadlocks, locks
# and timeouts, too many connections, and a server that starts.
_BUSY = ("40001", "40P01", "55P03", "57014", "53300", "57P03")


def check_driver(url: ServerUrl) -> None:
    """Raise StoreError if psycopg is not installed. Does not import it."""
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(
            f"the store '{url.shown}' needs psycopg, which is not installed; run: "
            f"{install('postgresql')}"
        )


class Session:
    """An open connection. It commits each statement, except inside `transaction`.

    Every method raises Unavailable if the server does not answer or refuses. The connection is then
    unusable, and is to be closed. `StoreError` means that waiting does not help.
    """

    def __init__(self, url: ServerUrl) -> None:
        self._url = url
        with self._translated():
            self._connection = _connect(url)
        try:
            version = self._connection.info.server_version
            if version < OLDEST_SERVER:
                raise StoreError(
                    f"the store '{url.shown}' is on PostgreSQL {_version_text(version)}; bestof "
                    f"needs {_version_text(OLDEST_SERVER)} or newer"
                )
            with self._translated():
                self._connection.execute(_SETTINGS)
        except BaseException:
            self._connection.close()
            raise

    @property
    def title(self) -> str:
        """The name of the store for messages."""
        return f"the store '{self._url.shown}'"

    def run(self, query: str, *values: object) -> list[Row]:
        """Run one statement, and return its rows. `values` replace `%s` in it."""
        with self._translated():
            # bytes: psycopg's types accept a query of another type only if it is a literal
            cursor = self._connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def tables(self, schema: str) -> set[str]:
        """Return the names of the tables of a schema. Empty if there is no such schema."""
        query = "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = %s"
        return {str(name) for (name,) in self.run(query, schema)}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the block together, or none of them if it raises."""
        with self._translated(), self._connection.transaction():
            yield

    @property
    def lost(self) -> bool:
        """Whether the server or the network has ended the connection."""
        return bool(self._connection.broken or self._connection.closed)

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import psycopg  # noqa: PLC0415 - takes 0.2 s, and is optional

        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"{self.title} cannot be used: {_line(error)}; let the owner grant this user "
                "the schema bestof and its tables, or make the schema for this user: CREATE SCHEMA "
                "bestof AUTHORIZATION user_name"
            ) from error
        except psycopg.Error as error:
            raise Unavailable(_line(error), busy=error.sqlstate in _BUSY) from error
        except (OSError, TimeoutError) as error:
            raise Unavailable(_line(error), busy=False) from error


def _connect(url: ServerUrl) -> psycopg.Connection[Row]:
    import psycopg  # noqa: PLC0415 - takes 0.2 s, and is optional
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - see above

    options: dict[str, Any] = {"fallback_application_name": "bestof", "client_encoding": "UTF8"}
    try:
        given = conninfo_to_dict(url.secret)
    except psycopg.ProgrammingError as error:
        # libpq's reason may quote the password
        reason = "its options or its %-signs are wrong" if url.has_password else _line(error)
        raise StoreError(
            f"the URL '{url.shown}' cannot be understood: {reason}; correct it"
        ) from None
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        options["connect_timeout"] = CONNECT_SECONDS
    # No prepared statements: they fail behind a pooler that shares connections.
    return _connection_class().connect(
        url.secret, autocommit=True, prepare_threshold=None, **options
    )


@cache
def _connection_class() -> type[psycopg.Connection[Row]]:
    import psycopg  # noqa: PLC0415 - takes 0.2 s, and is optional

    class BoundedConnection(psycopg.Connection[Row]):
        """Gives up if the server is silent for SILENT_SECONDS, for example because it is stopped.

        psycopg waits for ever, and `statement_timeout` needs a server that runs.
        """

        def wait(
            self,
            gen: PQGen[Any],
            interval: float = 0.1,
            timeout: float | None = None,
        ) -> Any:
            """Run a generator of psycopg until it ends, and return its result."""
            del interval, timeout
            try:
                wanted = next(gen)
                while True:
                    with selectors.DefaultSelector() as selector:
                        selector.register(self.pgconn.socket, wanted)
                        ready = selector.select(SILENT_SECONDS)
                    if not ready:
                        self.close()
                        raise TimeoutError(f"the server was silent for {SILENT_SECONDS:.0f} s")
                    wanted = gen.send(psycopg.waiting.Ready(ready[0][1]))
            except StopIteration as finished:
                return finished.value

    return BoundedConnection


def _line(error: BaseException) -> str:
    """Return the text of an error in one line, without the statement that failed."""
    reported = getattr(error, "diag", None)  # only if the server answered
    text = " ".join(str(getattr(reported, "message_primary", None) or error).split())
    return text if len(text) <= 400 else f"{text[:400]}..."


def _version_text(number: int) -> str:
    return (
        f"{number // 10000}.{number % 10000}"
        if number >= 100000
        else (f"{number // 10000}.{number // 100 % 100}")
    )
