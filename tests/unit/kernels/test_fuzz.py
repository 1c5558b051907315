"""Random problems in buffers of exactly the promised size, under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "fuzz"


@pytest.mark.skipif(
    not (os.environ.get("BESTOF_FUZZ") or (BUILD / "fuzz").exists()),
    reason="the sanitized build takes a minute: BESTOF_FUZZ=1 asks for it",
)
@pytest.mark.timeout(900)  # builds every kernel for every instruction set
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_no_kernel_writes_outside_its_memory() -> None:
    subprocess.run(
        ["cmake", "-S", str(ROOT / "native" / "fuzz"), "-B", str(BUILD)],
        check=True,
        capture_output=True,
        text=True,
    )
    subprocess.run(
        ["cmake", "--build", str(BUILD), "--parallel", "2"],
        check=True,
        capture_output=True,
        text=True,
    )
    run = subprocess.run(
        [str(BUILD / "fuzz"), "10", "1"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert run.returncode == 0, run.stderr[-4000:]
