"""The file of a SqliteStore: whose it is, which one it is, and how it is set aside when damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bestof.errors import StoreError

if sys.platform != "win32":
    import fcntl

APPLICATION_ID = 0x62657374  # "best"
SCHEMA_VERSION = 1

_MAGIC = b"SQLite format 3\0"
_FOLDER_LOCK_SECONDS = 10.0


def refuse_foreign(path: Path, *, claimed: bool) -> None:
    """Raise StoreError where the file at `path` is somebody else's, or of a newer schema; opens no connection.

    Reads the 100 bytes of SQLite's header (https://sqlite.org/fileformat2.html#the_database_header): user_version at
    60, application_id at 68. An absent, empty or unreadable file is not refused here. A file that is no SQLite
    database at all is refused unless it is `claimed`: its path is ours, so that its content must have been damaged.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(
                f"cannot keep decisions in '{path}': it is no regular file; name a file, as in '{path}/x'"
            )
        with path.open("rb") as file:
            header = file.read(100)
    except OSError:
        return
    if not header:
        return
    if len(header) < 100 or not header.startswith(_MAGIC):
        if claimed:
            return
        raise StoreError(
            f"'{path}' is no store of bestof: it is no SQLite database; it was not touched; name another"
        )
    check_identity(
        path,
        int.from_bytes(header[68:72], "big", signed=True),
        int.from_bytes(header[60:64], "big", signed=True),
    )


def check_identity(path: Path, application_id: int, schema_version: int) -> None:
    """Raise StoreError for another program's application_id, or for a schema that is newer than this program."""
    if application_id not in (0, APPLICATION_ID):
        raise foreign(path)
    if application_id == APPLICATION_ID and schema_version > SCHEMA_VERSION:
        raise StoreError(
            f"the store '{path}' has schema version {schema_version}, and this bestof knows versions up to "
            f"{SCHEMA_VERSION}; it was not touched; use a newer bestof, or name another store in BESTOF_STORE"
        )


def foreign(path: Path) -> StoreError:
    """The error for a SQLite database of another program."""
    return StoreError(
        f"'{path}' is a SQLite database of another program; it was not touched; name another file"
    )


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at `path` from another that replaced it; None where there is none. Takes 2 us."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def is_busy(error: sqlite3.DatabaseError) -> bool:
    """Whether waiting helps: another connection has the file, or just changed its schema."""
    text = str(error)
    return "is locked" in text or "locking protocol" in text


def is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether the content of the file is wrong, rather than access to it.

    SQLITE_CORRUPT and SQLITE_NOTADB come as DatabaseError itself. A damaged schema or text comes as an
    OperationalError that only its message tells from a full disk. (Error codes are known from Python 3.11 on.)
    """
    if isinstance(error, sqlite3.OperationalError):
        signs = (
            "no such table",
            "no such column",
            "has no column",
            "not decode to UTF-8",
            "unsupported file format",
        )
        return any(sign in str(error) for sign in signs)
    return not isinstance(error, (sqlite3.ProgrammingError, sqlite3.NotSupportedError))


def set_aside(path: Path) -> Path:
    """Rename the file and its journals, as `NAME.damaged-1` and so on; the new path.

    The journals go first: were the process killed in between, a journal without its database could otherwise be
    played into the new one.
    """
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("-shm", "-wal", "-journal", ""):
        source = path.with_name(path.name + ending)
        if source.exists():
            source.rename(target.with_name(target.name + ending))
    return target


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from opening a store in `folder`, or setting one aside, at the same time.

    A lock on the folder itself leaves no lock file behind, and ends with the process. Best effort: where it is not
    to be had (Windows, some network file systems, ten seconds of waiting), the block runs without; SQLite's own locks
    still guard the data, and opening is retried.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        deadline = time.monotonic() + _FOLDER_LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.003)
    except OSError:
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
