"""Ends a process with the one that started it, even if that one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends. Return False if it has ended.

    parent: the number of the process that started this one, as that process knows it. The parent
    that `os.getppid` returns here may already be another one. Only Linux has this; elsewhere the
    process lives on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
