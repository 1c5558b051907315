"""Waiting for the processes of a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bestof.recipe import contestant
from bestof.recipe.contestant import descendants, wait_until_idle

BUSY = """
import pathlib, sys, time
print("begun", flush=True)
for _ in range(20):
    sum(range(1000000))
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_idle_when_its_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestant, "MOST_IDLE_SECONDS", 200.0)
    done = tmp_path / "done"
    command = [sys.executable, "-c", BUSY, str(done)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until_idle([process.pid])
        assert done.exists()
        process.kill()
    wait_until_idle([process.pid])  # one that has ended
    wait_until_idle(descendants(process.pid))
