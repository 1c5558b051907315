"""The tests that `make torch-matrix` leaves out exist, so that none is left out by mistake."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_name_is_a_file_or_a_function_in_it() -> None:
    groups = runpy.run_path(str(ROOT / "tests" / "matrix" / "left_out.py"))["LEFT_OUT"]
    names = [name for group in groups.values() for name in group]
    assert len(set(names)) == len(names)
    for name in names:
        file, _, function = name.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function or 'test_'}" in text, name
