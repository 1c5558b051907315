"""Compiles file_system.c, and gives the environment that preloads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODES = ("no_locks", "slow", "full")


def build(folder: Path) -> Path | None:
    """Return the library, compiled into `folder`; None where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "file_system.so"
    source = Path(__file__).with_name("file_system.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return library if done.returncode == 0 else None


def environment(library: Path, mode: str, folder: Path) -> dict[str, str]:
    """Return the environment of a program for which the files of `folder` behave in this way."""
    preload = {"LD_PRELOAD": str(library), "HOSTILE_MODE": mode, "HOSTILE_PATH": str(folder)}
    return {**os.environ, **preload}
