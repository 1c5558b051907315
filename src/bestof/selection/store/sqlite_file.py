"""The file of a SqliteStore: check whose it is, identify it, and rename it if it is damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bestof.errors import StoreError

if sys.platform != "win32":
    import fcntl

APPLICATION_ID = 0x62657374  # "best"
SCHEMA_VERSION = 1

_MAGIC = b"SQLite format 3\0"
_FOLDER_LOCK_SECONDS = 10.0


def check_place(path: Path, *, claimed: bool) -> None:
    """Raise StoreError if a store cannot be at `path`.

    That is so if the file is not a store, has a newer schema, or has no folder. A file that is no
    SQLite database is refused too, unless it is `claimed`: the path is then bestof's own, and the
    file is a damaged store. An absent, empty or unreadable file is accepted.

    Opens no connection. It reads the 100 bytes of SQLite's header
    (https://sqlite.org/fileformat2.html#the_database_header), with user_version at 60 and
    application_id at 68.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(
                f"the store '{path}' cannot be made: the folder '{path.parent}' does not exist; "
                "make the folder, or correct the path"
            ) from None
        return
    except OSError:
        return
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        example = f"{path}/decisions.sqlite" if stat.S_ISDIR(mode) else "decisions.sqlite"
        kind = "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else kind
        raise StoreError(
            f"the store must be a regular file, but '{path}' is {kind}; pass a path such as "
            f"'{example}'"
        )
    try:
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
            f"'{path}' is not a store of bestof: it is no SQLite database; it was not changed; "
            "give another path"
        )
    check_identity(
        path,
        int.from_bytes(header[68:72], "big", signed=True),
        int.from_bytes(header[60:64], "big", signed=True),
    )


def check_identity(path: Path, application_id: int, schema_version: int) -> None:
    """Raise StoreError for another program's application_id, or for a newer schema."""
    if application_id not in (0, APPLICATION_ID):
        raise foreign(path)
    if application_id == APPLICATION_ID and schema_version > SCHEMA_VERSION:
        raise StoreError(
            f"the store '{path}' has schema version {schema_version}, and this bestof knows "
            f"versions up to {SCHEMA_VERSION}; it was not changed; use a newer bestof, or name "
            "another store in BESTOF_STORE"
        )


def foreign(path: Path) -> StoreError:
    """Return the error for a SQLite database of another program."""
    return StoreError(
        f"'{path}' is a SQLite database of another program; it was not changed; give another path"
    )


class Identity(NamedTuple):
    """Identifies a file, so that a replacement is noticed, and holds its size."""

    device: int
    inode: int
    size: int

    def is_that_of(self, other: Identity | None) -> bool:
        """Return whether both are the same file, whatever its size."""
        return other is not None and self[:2] == other[:2]


def identity(path: Path) -> Identity | None:
    """Return the identity of the file at `path`, or None if there is none. Takes 2 us."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_size)


def is_busy(error: sqlite3.DatabaseError) -> bool:
    """Return whether waiting helps: another connection has the file, or has changed its schema."""
    text = str(error)
    return "is locked" in text or "locking protocol" in text


def is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Return whether the content of the file is wrong, as opposed to the access to it.

    SQLITE_CORRUPT and SQLITE_NOTADB are DatabaseErrors. A damaged schema or text is an
    OperationalError. Only its message differs from that of a full disk, because error codes are
    available from Python 3.11 on.
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
    """Rename the file and its journals to `NAME.damaged-1` and so on. Return the new path.

    The journals are renamed first. If the process were killed in between, SQLite could otherwise
    apply an old journal to the new database.
    """
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("-shm", "-wal", "-journal", ""):
        source = path.with_name(path.name + ending)
        if source.exists():
            source.rename(target.with_name(target.name + ending))
    return target


class FolderLock:
    """Keeps other processes from renaming a store in `folder` while it is opened.

    Processes that open a store share the lock. A process that makes or renames it holds the lock
    alone. The lock is on the folder itself. So it leaves no lock file behind, and ends with the
    process.

    Taking it never waits: it raises BlockingIOError if another process has it. After ten seconds of
    attempts, the block runs without the lock. It also does so if locks do not exist (Windows, some
    network file systems). SQLite's own locks still protect the data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._since: float | None = None
        self._shared = False

    def shared(self, shared: bool) -> FolderLock:
        """Return this lock, to be held with others (`shared`) or alone."""
        self._shared = shared
        return self

    def __enter__(self) -> None:
        if sys.platform == "win32":
            return
        try:
            self.release()
            self._descriptor = os.open(self._folder, os.O_RDONLY)
            kind = fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            self._since = None
        except BlockingIOError:
            self.release()
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since < _FOLDER_LOCK_SECONDS:
                raise BlockingIOError("another process opens the store") from None
        except OSError:
            self.release()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *raised: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock if it is held. May be interrupted and called again.

        The lock is released before its descriptor is closed.
        """
        descriptor = self._descriptor
        if descriptor is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            self._descriptor = None
            os.close(descriptor)
