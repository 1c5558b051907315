"""The file of a SqliteStore: check whose it is, identify it, and rename it if it is damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bestof.errors import StoreError

if sys.platform != "win32":
    import fcntl

APPLICATION_ID = 0x62657374  # "best"
SCHEMA_VERSION = 1

_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".sqlite", ".sqlite3")
_MARK = "user.bestof.store"  # an extended attribute
_PART = 1 << 20  # bytes that are read at once
_FOLDER_LOCK_SECONDS = 10.0


def check_place(path: Path, *, claimed: bool) -> None:
    """Raise StoreError if a store cannot be at `path`.

    That is so if the file is not a store, has a newer schema, or has no folder. A file that is no
    SQLite database is refused too, unless it is a damaged store: see `_was_a_store`. An absent,
    empty or unreadable file is accepted.

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
        if _was_a_store(path, header, claimed=claimed):
            return
        raise StoreError(
            f"'{path}' is not a store of bestof: it is no SQLite database; it was not changed; "
            "give another path, or delete the file if it was one"
        )
    application_id = int.from_bytes(header[68:72], "big", signed=True)
    if application_id in (0, APPLICATION_ID) or not (claimed or _is_marked(path)):
        check_identity(path, application_id, int.from_bytes(header[60:64], "big", signed=True))
    # else these bytes may be damaged: the tables tell whose the file is


def _was_a_store(path: Path, header: bytes, *, claimed: bool) -> bool:
    """Return whether a file without SQLite's header is a damaged store, not a user's file.

    It is one if the path is bestof's own (`claimed`), if the name says that it is a database of
    SQLite, if bestof has marked the file, or if nothing but zeros or a part of SQLite's header is
    left.
    """
    return (
        claimed
        or _MAGIC.startswith(header[: len(_MAGIC)])
        or path.suffix.lower() in _SUFFIXES
        or _is_marked(path)
        or _is_blank(path)
    )


def _is_blank(path: Path) -> bool:
    """Return whether a file has zeros only."""
    try:
        with path.open("rb") as file:
            while part := file.read(_PART):
                if part.count(0) != len(part):
                    return False
    except OSError:
        return False
    return True


def mark(path: Path) -> None:
    """Note in an attribute of the file that it is a store of bestof.

    The attribute stays if the content is overwritten. It opens no descriptor, since closing one
    would cancel SQLite's locks. Nothing is done where files have no such attributes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if not _is_marked(path):
                os.setxattr(path, _MARK, b"1")


def _is_marked(path: Path) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return os.getxattr(path, _MARK) == b"1"
    except OSError:
        return False


def share_journals(path: Path) -> None:
    """Give the journals that this process has made to the group of the database.

    SQLite copies the permissions of the database, but the group is that of the process. Others of
    the database's group could then not write the journals, nor the database.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError):
        group = os.stat(path).st_gid
        for ending in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                journal = f"{path}{ending}"
                if os.stat(journal).st_gid != group:
                    os.chown(journal, -1, group)


def may_write(path: Path) -> bool:
    """Return whether this process may write the file at `path`."""
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.W_OK, effective_ids=effective)


def foreign_journal(path: Path) -> Path | None:
    """Return the journal of a store that another user has made, and this process may not write."""
    for ending in ("-wal", "-shm", "-journal"):
        journal = path.with_name(path.name + ending)
        if journal.exists() and not may_write(journal):
            return journal
    return None


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


class Damage(sqlite3.DatabaseError):
    """What bestof itself has found wrong with a store: it does not return what was written."""


def may_be_damaged(error: sqlite3.DatabaseError) -> bool:
    """Return whether the content of the file may be wrong, as opposed to the access to it.

    SQLITE_CORRUPT and SQLITE_NOTADB are DatabaseErrors. A damaged schema is an OperationalError.
    Only its message differs from that of a full disk, because error codes are available from
    Python 3.11 on. A constraint fails in a damaged index, but also for a value that the table
    refuses: so `damage_in` looks at the file.
    """
    if isinstance(error, sqlite3.OperationalError):
        signs = ("no such table", "no such column", "has no column", "unsupported file format")
        return any(sign in str(error) for sign in signs)
    others = (sqlite3.ProgrammingError, sqlite3.NotSupportedError, sqlite3.DataError)
    return not isinstance(error, others)


def damage_in(path: Path, queries: Iterable[str]) -> str | None:
    """Return what is wrong with the database at `path`, or None if it is healthy.

    `queries` must be possible. Raises OperationalError if the file cannot be read now.
    """
    try:
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
        try:
            for query in queries:
                connection.execute(query).close()
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if is_busy(error) or not may_be_damaged(error):
            raise
        return str(error)
    except UnicodeDecodeError as error:  # SQLite's message contains a damaged name
        return str(error)
    return None if found == "ok" else str(found)


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
