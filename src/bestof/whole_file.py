"""A file that is written beside its place, and takes the place when it is complete."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

# Then there is no file of this name, or it is another process's.
_NOT_MADE = (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)
_LONGEST = 200  # bytes of the name that the file beside repeats; file systems allow 255


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for writing. It replaces the file at `path` when the block ends.

    A reader sees the old file or the new one, never a part, also after a power failure. Of several
    writers the last one stays. If the block raises, the old file stays. The new file gets the
    permissions of the old one. The target of a link is replaced, not the link.

    A device or a pipe is written directly. So is a file in a folder where no other file can be
    made. Raises OSError if the file cannot be written.
    """
    place = os.path.realpath(path)
    old = _status(place)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(place, "wb") as out:  # a folder raises IsADirectoryError
            yield out
        return
    made: list[str] = []
    try:
        try:
            descriptor = _opened_beside(place, made)
        except PermissionError:
            if old is None:
                raise
            with open(place, "wb") as out:
                yield out
            return
        with open(descriptor, "wb") as out:
            if old is not None:
                if not os.access(place, os.W_OK):
                    raise PermissionError(13, os.strerror(13), place)
                with suppress(OSError):  # such as a file system without permissions
                    os.chmod(made[0], stat.S_IMODE(old.st_mode))
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(made[0], place)
    finally:
        _remove(made)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8 by `whole_file`."""
    content = text.encode("utf-8")
    with whole_file(path) as out:
        out.write(content)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if `whole_file` could not write this file. The file stays as it is.

    A new file is not made, not even for a moment: another process may be about to make it.
    """
    place = os.path.realpath(path)
    old = _status(place)
    if old is not None:
        # Appending nothing changes nothing. Opening a pipe would wait for its reader.
        if not stat.S_ISFIFO(old.st_mode):
            with open(place, "ab"):
                pass
        return
    made: list[str] = []
    try:
        os.close(_opened_beside(place, made))
        os.unlink(made[0])  # here, as a signal that arrives below leaves the file
    finally:
        _remove(made)


def _status(place: str) -> os.stat_result | None:
    try:
        return os.stat(place)
    except FileNotFoundError:
        return None


def _opened_beside(place: str, made: list[str]) -> int:
    """Open a new file in the folder of `place` under a name of its own. Return its descriptor.

    The name is put into `made` before the file exists. So whoever is interrupted by a signal, even
    before this returns, can remove the file.
    """
    folder, name = os.path.split(place)
    if not name:
        raise IsADirectoryError(21, os.strerror(21), place)
    with suppress(FileNotFoundError):
        os.lstat(place)  # raises if the name is too long
    begin = os.fsdecode(os.fsencode(name)[:_LONGEST])
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        made[:] = [os.path.join(folder, f".{begin}.{secrets.token_hex(6)}")]
        try:
            return os.open(made[0], flags, 0o666)
        except OSError as error:  # or what a signal handler raises, such as TimeoutError
            if error.errno in _NOT_MADE:
                made.clear()
            if error.errno != errno.EEXIST:
                raise


def _remove(made: list[str]) -> None:
    """Remove a file that did not take its place."""
    for beside in made:
        with suppress(FileNotFoundError):
            os.unlink(beside)
