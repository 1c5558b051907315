"""Random threads and processes for two seconds; in the long tests for twenty.

`make hostile` tries them for minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_and_processes_lose_nothing_for_a_while(seconds: int) -> None:
    """Side by side: the threads keep one core busy, and the processes mostly wait for the disk."""
    programs = ("selector_stress.py", "store_stress.py")
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(BENCHMARKS / program), "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    try:
        for one in running:
            said = "\n".join(one.communicate(timeout=seconds + 200))
            assert one.returncode == 0, said
    finally:
        for one in running:
            one.kill()
            one.communicate()
