"""Diverts the output of C code, and only that.

oneDNN and MKL write their verbose lines to C's `stdout`. In glibc this is a variable. While it
points to a file of bestof, the lines go there. Descriptor 1 stays as it is, so Python's own output,
its order, and `isatty` do not change. A program may even close the descriptor. Other output of C
code is passed on to descriptor 1 as soon as `drain` reads it. Another thread does that: if Python
writes without a buffer, such a line may come between the pieces of one `print`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from bestof.errors import ProfileError

_CHUNK = 1 << 20
_HIGHEST = 1024


class COutput:
    """Diverts C's stdout between `start` and `stop`, and calls `take` with each complete line.

    `take` returns True for a line that it keeps. Other lines are written to descriptor 1. One
    thread at a time calls `take`.
    """

    def __init__(self, take: Callable[[str], bool]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._rest = b""
        self._place = 0
        self._process = os.getpid()
        self._diversion: _Diversion | None = None
        self._before: int | None = None
        # Whether the program closed the file, so that lines were lost.
        self.closed = False

    def start(self) -> None:
        """Start diverting. Raises ProfileError if the C library has no variable `stdout`."""
        diversion = _diversion()
        libc, stdout = _library()
        libc.fflush(None)
        if not diversion.is_open:  # the program closed it during an earlier capture
            _diversion.cache_clear()
            diversion = _diversion()
        self._place = os.fstat(diversion.file).st_size
        self._before, stdout.value = stdout.value, diversion.stream
        self._diversion = diversion
        _watch_forks()
        _started.add(self)

    def stop(self) -> None:
        """Restore C's stdout, and pass on the rest, including an unfinished line."""
        if self._diversion is None or os.getpid() != self._process:
            return
        _, stdout = _library()
        self._flush(self._diversion)
        # If the program has diverted stdout itself meanwhile, its diversion stays.
        if stdout.value == self._diversion.stream:
            stdout.value = self._before
        self.drain()
        with self._lock:
            if self._rest:
                self._line(self._rest)
                self._rest = b""
            self._diversion = None
        _started.discard(self)

    def drain(self) -> None:
        """Take the lines that have arrived."""
        with self._lock:
            if self._diversion is None:
                return
            self._flush(self._diversion)
            with suppress(OSError):  # closed by the program
                self._read(self._diversion.file)

    def _flush(self, diversion: _Diversion) -> None:
        if diversion.is_open:
            _library()[0].fflush(diversion.stream)
        else:
            # `fclose` has freed the stream, or a program that becomes a daemon closed all
            # descriptors. Until the end, C's stdout stays diverted: oneDNN prints on.
            self.closed = True

    def _read(self, file: int) -> None:
        # Up to the present end: a thread that prints on must not keep this one here. Reading
        # allocates the whole chunk, so do not read if nothing has arrived.
        end = os.fstat(file).st_size
        while self._place < end:
            data = os.pread(file, _CHUNK, self._place)
            if not data:
                return
            self._place += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._line(line + b"\n")

    def _line(self, line: bytes) -> None:
        if not self._take(line.decode("utf-8", errors="replace")):
            try:
                os.write(1, line)
            except OSError:  # the program may close the descriptor
                return

    def before_fork(self) -> None:
        """Empty the buffer of the stream. A forked process would inherit and print it again."""
        if self._diversion is not None:
            self._flush(self._diversion)

    def in_child(self) -> None:
        """Give a forked process its own output back, because its lines belong to no span here."""
        if self._diversion is not None:
            _, stdout = _library()
            if stdout.value == self._diversion.stream:
                stdout.value = self._before
            self._diversion = None


# Those between `start` and `stop`.
_started: set[COutput] = set()


@cache
def _watch_forks() -> None:
    """Tell what has started of each fork. Python cannot take such a registration back."""

    def before() -> None:
        for one in tuple(_started):
            one.before_fork()

    def in_child() -> None:
        for one in tuple(_started):
            one.in_child()
        _started.clear()

    os.register_at_fork(before=before, after_in_child=in_child)


@dataclass(frozen=True, slots=True)
class _Diversion:
    """A file in memory, and the C stream that appends to it by another descriptor."""

    file: int
    stream: int
    other: int

    @property
    def is_open(self) -> bool:
        """Whether the program has closed neither the file nor the stream."""
        try:
            os.fstat(self.file), os.fstat(self.other)
        except OSError:
            return False
        return True


def _high(file: int) -> int:
    """Return a copy of a descriptor with a high number.

    If the program closes all descriptors, the next file that it opens gets a low one, and is not
    taken for this file.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, min(_HIGHEST, most) - 16)
    except OSError:
        return os.dup(file)


@cache
def _diversion() -> _Diversion:
    """Return the diversion of the process.

    It is never closed, because C code may have copied the pointer while it was `stdout`.
    """
    libc, _ = _library()
    low = os.memfd_create("bestof-profile", os.MFD_CLOEXEC)
    file, other = _high(low), _high(low)
    os.close(low)
    # Append mode keeps lines of several threads whole.
    stream = libc.fdopen(other, b"a")
    if not stream:
        raise ProfileError("cannot divert the output of C code: fdopen failed")
    return _Diversion(file, stream, other)


@cache
def _library() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    libc.fdopen.argtypes = [ctypes.c_int, ctypes.c_char_p]
    libc.fflush.argtypes = [ctypes.c_void_p]
    try:
        return libc, ctypes.c_void_p.in_dll(libc, "stdout")
    except ValueError as error:
        raise ProfileError(
            f"cannot divert the output of C code: the C library of {sys.platform} has no "
            "variable `stdout`; write the lines of ONEDNN_VERBOSE=1 to a file, and give bestof "
            "profile that file"
        ) from error
