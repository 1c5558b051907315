"""Makes glibc's allocator keep freed memory in the process.

Eager PyTorch allocates and frees each result. Memory that was returned to the system is mapped
again page by page, and each page fault takes 1.6 us. MobileNetV2 had 56,000 page faults per call
with 8 images, which took half of its time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

# From glibc's malloc.h. mallopt returns 1 for success.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_DONE = 1

_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_TUNABLES = (
    "glibc.malloc.mmap_max=",
    "glibc.malloc.mmap_threshold=",
    "glibc.malloc.trim_threshold=",
)

# The largest threshold that glibc accepts: it can map blocks from this size on singly.
LARGE_BYTES = 32 << 20


class _State:
    keeps = False  # whether `keep_freed` holds
    mapping: ClassVar[set[object]] = set()  # one token for each open context of `mapping_large`


os.register_at_fork(after_in_child=_State.mapping.clear)


def keep_freed() -> bool:
    """Make malloc keep freed memory. Return whether it does.

    It returns False and changes nothing if the process has another malloc than glibc's, if glibc
    refuses, or if the user has set these options by environment variables. In threads other than
    the first, blocks above 64 MiB are still returned to the system.
    """
    libc = None if is_set(os.environ) else _glibc()
    if libc is None or libc.mallopt(_M_MMAP_MAX, 0) != _DONE:  # never map a block separately
        return False
    if libc.mallopt(_M_TRIM_THRESHOLD, -1) != _DONE:  # never shrink the heap
        hand_back_freed()
        return False
    _State.keeps = True
    return True


def hand_back_freed() -> None:
    """Undo `keep_freed`: return kept memory to the system now, and freed memory from now on.

    By default, glibc raises its thresholds with the sizes that are freed. Any setting ends that for
    good, so these are the values that it would reach at most.
    """
    libc = _glibc()
    assert libc is not None
    _State.keeps = False
    _map_large(libc)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    libc.malloc_trim(0)


def hand_back_unused() -> None:
    """Return to the system what is free now. What is freed from now on is kept as before.

    It does nothing with another malloc than glibc's. The next use of this memory meets page faults.
    """
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@contextmanager
def mapping_large() -> Iterator[None]:
    """Return what is free to the system, and meanwhile map blocks from LARGE_BYTES on singly.

    A large block on the heap seldom fits into the piece that one of the same size has left, so the
    heap grows. A block that is mapped singly leaves nothing behind. This is for work that is done
    once: each of its blocks meets page faults. It holds in all threads of the process, and does
    nothing if freed memory is not kept.
    """
    libc = _glibc() if _State.keeps else None
    if libc is None:
        yield
        return
    token = object()
    try:
        _State.mapping.add(token)
        _map_large(libc)
        libc.malloc_trim(0)
        yield
    finally:
        _State.mapping.discard(token)
        if _State.keeps and not _State.mapping:
            libc.mallopt(_M_MMAP_MAX, 0)


def _map_large(libc: ctypes.CDLL) -> None:
    libc.mallopt(_M_MMAP_MAX, 65536)
    libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def is_set(environment: Mapping[str, str]) -> bool:
    """Return whether the user has set what `keep_freed` changes, by environment variables."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in _VARIABLES) or any(
        name in tunables for name in _TUNABLES
    )


def _glibc() -> ctypes.CDLL | None:
    """Return the C library, or None if the malloc of the process is not glibc's."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") and _answers(libc) else None


def _answers(found: ctypes.CDLL) -> bool:
    """Return whether glibc's malloc is the one that is found first: another may be preloaded.

    Not by `malloc` itself: an executable at a fixed address, as Debian's Python, has an entry of
    its own under this name.
    """
    own = ctypes.CDLL("libc.so.6")
    functions = (one.malloc_usable_size for one in (found, own))
    first, glibcs = (ctypes.cast(one, ctypes.c_void_p).value for one in functions)
    return first == glibcs
