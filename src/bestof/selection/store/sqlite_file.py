"""The file of a SqliteStore: whose it is, which one it is, and how it is set aside when damaged."""

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
    """Raise StoreError if the file at `path` is not a store, is of a newer schema, or has no folder
    to stand in.

    Opens no connection: reads the 100 bytes of SQLite's header
    (https://sqlite.org/fileformat2.html#the_database_header), user_version at 60, application_id at
    68. An absent, empty or unreadable file is not refused here. A file that is no SQLite database
    at all is refused unless it is
    `claimed`: then the path is bestof's own, and the content must have been damaged.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(
                f"the store '{path}' cannot be made: there is no folder '{path.parent}'; "
                f"make the folder, or correct the path"
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
            f"name another file"
        )
    check_identity(
        path,
        int.from_bytes(header[68:72], "big", signed=True),
        int.from_bytes(header[60:64], "big", signed=True),
    )


def check_identity(path: Path, application_id: int, schema_version: int) -> None:
    """Raise StoreError for another program's application_id, or for a schema newer than this
    program."""
    if application_id not in (0, APPLICATION_ID):
        raise foreign(path)
    if application_id == APPLICATION_ID and schema_version > SCHEMA_VERSION:
        raise StoreError(
            f"the store '{path}' has schema version {schema_version}, and this bestof knows "
            f"versions up to {SCHEMA_VERSION}; it was not changed; use a newer bestof, or name "
            "another store in BESTOF_STORE"
        )


def foreign(path: Path) -> StoreError:
    """The error for a SQLite database of another program."""
    return StoreError(
        f"'{path}' is a SQLite database of another program; it was not changed; name another file"
    )


class Identity(NamedTuple):
    """What tells a file from another that replaced it, and its size."""

    device: int
    inode: int
    size: int

    def is_that_of(self, other: Identity | None) -> bool:
        """Return whether both are the same file, of whatever size."""
        return other is not None and self[:2] == other[:2]


def identity(path: Path) -> Identity | None:
    """Return the identity of the file at `path`, or None if there is none. Takes 2 us."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_size)


def is_busy(error: sqlite3.DatabaseError) -> bool:
    """Whether waiting helps: another connection has the file, or just changed its schema."""
    text = str(error)
    return "is locked" in text or "locking protocol" in text


def is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether the content of the file is wrong, rather than access to it.

    SQLITE_CORRUPT and SQLITE_NOTADB come as DatabaseError itself. A damaged schema or text comes as
    an OperationalError that only its message tells from a full disk. (Error codes are known from
    Python 3.11 on.)
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

    The journals go first: were the process killed in between, a journal without its database could
    otherwise be played into the new one.
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
    """Keeps other processes from setting a store in `folder` aside while it is opened.

    Processes that open a store share the lock; one that makes it or sets it aside holds it alone. A
    lock on the folder itself leaves no lock file behind, and ends with the process. Taking it never
    waits: BlockingIOError if another process is in the way. After ten seconds of attempts, and
    where no lock is to be had (Windows, some network file systems), the block runs without it;
    SQLite's own locks still guard the data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._since: float | None = None
        self._shared = False

    def shared(self, shared: bool) -> FolderLock:
        """Return this lock, to be taken together with others or alone."""
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
        """Let go, if anything is held. May be interrupted and called again: the lock goes before
        its descriptor."""
        descriptor = self._descriptor
        if descriptor is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            self._descriptor = None
            os.close(descriptor)
