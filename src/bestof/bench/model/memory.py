"""Reads the peak of this process's memory from Linux."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

_PROCESS = Path("/proc/self")


def peak_bytes() -> int | None:
    """Return the most memory since `restart_peak`, or else since the process began.

    None if the system does not tell.
    """
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def restart_peak() -> bool:
    """Start a new peak from the memory in use. Return whether the system supports this."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def trim() -> None:
    """Free unreachable objects, and return freed memory to the system, so that it does not
    count."""
    gc.collect()
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
