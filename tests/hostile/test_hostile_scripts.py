"""Programs that fork, spawn, use threads, TorchScript, vmap, autocast or DDP, each in a process of
its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import run


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", run.SCRIPTS)
def test_a_script_ends_well(name: str, tmp_path: Path) -> None:
    if name == "fork" and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    script = Path(__file__).with_name("scripts") / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(tmp_path / "decisions.sqlite")],
        env={**os.environ, "BESTOF_STORE": str(tmp_path / "own.sqlite")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "Traceback" not in done.stderr
