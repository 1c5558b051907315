"""The OpenMP runtimes of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch


def test_pytorchs_runtime_is_the_first_behind_a_link_too(tmp_path: Path) -> None:
    packages = Path(torch.__file__).resolve().parents[1]
    (tmp_path / "link").symlink_to(packages)
    (tmp_path / "maps").write_text(
        "".join(
            f"7f00-7f01 r-xp 00000000 fe:00 1 {one}\n"
            for one in ("/elsewhere/libgomp.so.1", packages / "torch" / "lib" / "libgomp.so.1")
        )
    )
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path / "link")!r})
from pathlib import Path
import torch
from bestof.torch.process.openmp import runtimes
assert torch.__file__.startswith({str(tmp_path)!r})
print(*runtimes(Path({str(tmp_path / "maps")!r})), sep="\\n")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250
    )
    own = str(packages / "torch" / "lib" / "libgomp.so.1")
    assert ran.stdout.splitlines() == [own, "/elsewhere/libgomp.so.1"]
