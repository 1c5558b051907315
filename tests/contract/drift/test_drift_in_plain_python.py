"""Runs all tests of this folder once more without the native hot path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bestof.selection.hot_path import HotPath, NativeHotPath, PythonHotPath


def test_these_tests_ran_on_the_hot_path_that_was_asked_for() -> None:
    pure = bool(os.environ.get("BESTOF_PURE_PYTHON")) or NativeHotPath is None
    assert HotPath is (PythonHotPath if pure else NativeHotPath)


@pytest.mark.long
@pytest.mark.timeout(1100)
@pytest.mark.skipif(
    bool(os.environ.get("BESTOF_PURE_PYTHON")), reason="this is the run in plain Python"
)
def test_all_of_this_in_plain_python() -> None:
    folder = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "BESTOF_PURE_PYTHON": "1"},
        cwd=folder.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert run.returncode == 0, run.stdout[-4000:]
