"""The C library's allocator: whether what is freed stays in the process, or goes back to the system.

What is handed back must be mapped anew, page by page, by a fault that takes 1.6 us; eager PyTorch frees and allocates
each result. MobileNetV2 met 56,000 faults a call with 8 images, half of its time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

# Of glibc's malloc.h, whose mallopt returns 1 for success.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_DONE = 1

_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_TUNABLES = (
    "glibc.malloc.mmap_max=",
    "glibc.malloc.mmap_threshold=",
    "glibc.malloc.trim_threshold=",
)


def keep_freed() -> bool:
    """From now on what is freed stays, for whatever is allocated next, and whether that is so.

    It is not, and nothing was changed, where the C library is not glibc or refuses, or where the environment has
    settings of the user's own. Pieces of more than 64 MiB in other threads than the first one go back all the same.
    """
    libc = None if is_set(os.environ) else _glibc()
    if libc is None or libc.mallopt(_M_MMAP_MAX, 0) != _DONE:  # nothing is mapped for itself
        return False
    if libc.mallopt(_M_TRIM_THRESHOLD, -1) != _DONE:  # the largest size: the heap never shrinks
        hand_back_freed()
        return False
    return True


def hand_back_freed() -> None:
    """The end of `keep_freed`: what was kept goes back to the system now, and what is freed later as it used to.

    glibc raises its thresholds with the sizes that are freed, up to these, until a setting ends that for good.
    """
    libc = _glibc()
    assert libc is not None
    libc.mallopt(_M_MMAP_MAX, 65536)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    libc.malloc_trim(0)


def is_set(environment: Mapping[str, str]) -> bool:
    """Whether the user has set in the environment what `keep_freed` would change."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in _VARIABLES) or any(
        name in tunables for name in _TUNABLES
    )


def _glibc() -> ctypes.CDLL | None:
    """None where the process runs on another C library."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
