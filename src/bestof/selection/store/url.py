"""The URL of a store, as users write it."""

from __future__ import annotations

import os
import re

from bestof.errors import StoreError
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: C:\ is a drive
_ACCEPTED = "'off', 'memory:', 'sqlite:///PATH' or a plain PATH"


def open_store(url: str | os.PathLike[str]) -> Store | None:
    """The store that `url` names; None for `off`. StoreError for what is none.

    What follows `sqlite:///` is the path, literally (relative; an absolute one has four slashes in
    all). A leading ~ is the user's home. A plain path that begins like a scheme is written with
    './' before it.
    """
    text = os.fspath(url)
    if text == "off":
        return None
    if text == "memory:":
        return MemoryStore()
    path = text.removeprefix("sqlite:///")
    if not path or (path == text and _SCHEME.match(text)):
        raise StoreError(f"there is no store {text!r}; accepted are {_ACCEPTED}")
    return open_file(path)


def open_file(path: str | os.PathLike[str], *, claimed: bool = False) -> Store:
    """The store in a SQLite file; `claimed` as in SqliteStore. StoreError where this Python lacks
    SQLite."""
    try:
        # Here and not above: importing sqlite3 takes 4 ms, and some builds of Python lack it.
        from bestof.selection.store.sqlite import SqliteStore  # noqa: PLC0415 (see above)
    except ImportError as error:
        raise StoreError(
            f"'{path}' needs SQLite, which this Python was built without ({error})"
        ) from error
    return SqliteStore(path, claimed=claimed)
