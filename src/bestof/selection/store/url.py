"""Open a store by its URL, as users write it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import import_module

from bestof.errors import StoreError
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.postgresql_url import is_server_url, without_password
from bestof.selection.store.protocol import Store

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # at least two letters, because C:\ is a drive
_ACCEPTED = (
    "'off', 'memory:', 'sqlite:///PATH' or a plain PATH, and 'postgresql://USER@HOST:PORT/DATABASE'"
)

_MEMORY = ("memory", "memory:", ":memory:", "sqlite:///:memory:")  # as other programs write it
_SETTINGS = frozenset(
    {
        *("0", "1", "2", "no", "yes", "n", "y", "false", "true", "f", "t", "none", "null", "nil"),
        *("on", "default", "auto", "enable", "enabled", "disable", "disabled", "ram", "mem"),
        *("sqlite", "sqlite3", "postgres", "postgresql", "file", "disk", "cache", "undefined"),
    }
)
"""Words that are no names of files, as far as a user means them."""


def open_store(url: str | os.PathLike[str]) -> Store | None:
    """Return the store at `url`, or None for `off`. Capitals do not matter in such words.

    The text after `sqlite:///` is the path as it stands. It is relative; an absolute path has four
    slashes in all. A leading ~ is the user's home. Write './' before a plain path that begins like
    a scheme, or that is one word which looks like a setting, such as `none`. A path object is
    always a path. A URL that begins with `postgresql://` is read by libpq.

    Raises StoreError if `url` names no store.
    """
    text = os.fspath(url)
    word = text.strip().lower() if isinstance(url, str) else ""
    if word == "off":
        return None
    if word in _MEMORY:
        return MemoryStore()
    if word in _SETTINGS:
        raise StoreError(
            f"the store {text!r} looks like a setting, not like a path; write 'off' for no store, "
            f"'memory:' for one that ends with the process, or './{text.strip()}' for a file of "
            "this name"
        )
    if is_server_url(text):
        # Imported here, because other stores do not need it.
        from bestof.selection.store.postgresql import PostgresqlStore  # noqa: PLC0415 (see above)

        return PostgresqlStore(text)
    path = text.removeprefix("sqlite:///")
    # A path with a password in it would be the name of a file.
    is_misspelt = path == text and (_SCHEME.match(text) or without_password(text) != text)
    if not path or is_misspelt:
        raise StoreError(f"there is no store {without_password(text)!r}; accepted are {_ACCEPTED}")
    return open_file(path)


def import_store(url: str) -> None:
    """Import what `open_store` imports for this URL. What is missing is told when it is opened."""
    word = url.strip().lower()
    if word == "off" or word in _MEMORY:
        return
    name = "postgresql" if is_server_url(url) else "sqlite"
    with suppress(ImportError):
        import_module(f"bestof.selection.store.{name}")


def open_file(path: str | os.PathLike[str], *, claimed: bool = False) -> Store:
    """Return the store in a SQLite file. For `claimed` see SqliteStore.

    Raises StoreError if this Python lacks SQLite.
    """
    try:
        # Imported here, because importing sqlite3 takes 4 ms and some builds of Python lack it.
        from bestof.selection.store.sqlite import SqliteStore  # noqa: PLC0415 (see above)
    except ImportError as error:
        raise StoreError(
            f"'{path}' needs SQLite, which this Python was built without ({error})"
        ) from error
    return SqliteStore(path, claimed=claimed)
