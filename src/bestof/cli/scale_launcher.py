"""Runs PyTorch's launcher for `bestof scale`: `-m bestof.cli.scale_launcher PARENT [options] ...`.

PARENT is the process of `bestof scale`. The kernel ends the launcher when PARENT ends, even if
PARENT is killed. The ranks end with the launcher in the same way; see `scale_trial`.
"""

from __future__ import annotations

import os
import runpy
import sys

from bestof.worker.end_with import end_with

LAUNCHER = "BESTOF_SCALE_LAUNCHER"
"""The variable by which the ranks learn the number of the launcher's process."""

if __name__ == "__main__":
    if not end_with(int(sys.argv.pop(1))):
        sys.exit(1)
    os.environ[LAUNCHER] = str(os.getpid())
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
