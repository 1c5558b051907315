"""Runs PyTorch's launcher for `bestof scale`: `-m bestof.cli.scale_launcher PARENT [options] ...`.

PARENT is the process of `bestof scale`. The kernel ends the launcher when PARENT ends, even if
PARENT is killed. The ranks end with the launcher in the same way; see `scale_trial`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends. Return False if it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


if __name__ == "__main__":
    if not end_with(int(sys.argv.pop(1))):
        sys.exit(1)
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
