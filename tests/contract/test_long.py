"""The mark `long`: what stays in `make test`, and that `make test-all` leaves nothing out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.long
def test_all_of_it(): pass

@pytest.mark.long(every=4)
@pytest.mark.parametrize("n", range(10))
def test_some_of_it(n): pass

def test_none_of_it(): pass
"""


def chosen(folder: Path, *options: str) -> list[str]:
    for file in (CONFTEST, CONFTEST.with_name("postgresql_server.py")):  # which it imports
        shutil.copy(file, folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_make_test_keeps_some_parameters_of_a_large_family(tmp_path: Path) -> None:
    assert chosen(tmp_path, "-m", "not long") == [
        *(f"test_some_of_it[{n}]" for n in (0, 4, 8)),
        "test_none_of_it",
    ]


def test_make_test_all_runs_everything(tmp_path: Path) -> None:
    assert len(chosen(tmp_path)) == 12
