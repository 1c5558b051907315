"""Programs that run well without bestof do so with it, whatever oneDNN does in channels last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("library_faults.py")


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", ["strided_points", "thin_images", "thin_behind_others", "layouts"])
def test_program_runs_well(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), name],
        env={**os.environ, "BESTOF_STORE": "", "OMP_WAIT_POLICY": "passive"},
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.strip().endswith("well")
