"""Busy processes beside a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bestof.bench.neighbours import busy


def children() -> set[str]:
    """The processes that this one has started, by the state and the number."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = stat.read_text(encoding="utf-8").partition(" (")
        except OSError:
            continue
        state, parent = rest.rpartition(") ")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found.add(number)
    return found


@pytest.mark.parametrize("count", [0, 2])
def test_processes_run_meanwhile_and_end_behind_it(count: int) -> None:
    before = children()
    with busy(count):
        assert len(children() - before) == count
    assert children() <= before


def test_they_end_if_the_measurement_fails() -> None:
    before = children()
    with pytest.raises(subprocess.SubprocessError), busy(1):
        raise subprocess.SubprocessError
    assert children() <= before


def test_they_end_if_the_measurement_is_killed() -> None:
    program = """
import os, signal
from bestof.bench.neighbours import busy
with busy(1):
    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    (number,) = done.stdout.split()
    stat = Path("/proc", number.decode(), "stat")
    for _ in range(500):
        if not stat.exists() or stat.read_text(encoding="utf-8").split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("a busy process was left")
