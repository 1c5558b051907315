"""Objects export only names of their own instruction set, so that none runs another's code."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = {
    isa: sorted(ROOT.glob(f"build/*/native/CMakeFiles/kernels_{isa}.dir/**/*.o"))
    for isa in (
        ("neon",)
        if platform.machine() in ("aarch64", "arm64")
        else ("amx_bf16", "avx512_bf16", "avx512", "avx2", "baseline")
    )
}


def _lent(path: Path) -> list[str]:
    """Return the defined symbols that the linker may use: upper case and weak ones in nm."""
    listed = subprocess.run(
        ["nm", "--demangle", "--defined-only", str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    symbols = (line.split(maxsplit=2)[1:] for line in listed.splitlines())
    return [name for kind, name in symbols if kind.isupper() or kind in "uvw"]


@pytest.mark.parametrize("isa", OBJECTS)
def test_objects_lend_only_names_of_their_own(isa: str) -> None:
    if shutil.which("nm") is None or not OBJECTS[isa]:
        pytest.skip("needs nm and the objects of a build of this checkout")
    for path in OBJECTS[isa]:
        lent = _lent(path)
        assert lent, path
        strange = [name for name in lent if f"bestof::{isa}::" not in name]
        assert not strange, (
            f"{path.name} lends {strange[:5]}: another instruction set would run its code"
        )
