"""`bestof run --write-lock`, `--locked` and `--strict`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from bestof import BestOf

clock = [0.0]
def slow(n):
    clock[0] += 3.0
    return "slow"
def fast(n):
    clock[0] += 1.0
    return "fast"

toy = BestOf("toy", [("slow", slow), ("fast", fast)], lambda n: n, clock=lambda: clock[0])
for n in map(int, sys.argv[2:]):
    print(n, [toy(n) for _ in range(60 if n < 10 else 1)][-1])
sys.exit(int(sys.argv[1]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "toy.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "bestof", "run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    written = run(
        tmp_path, "--store", "off", "--write-lock", "l.lock", "toy.py", "0", "1", "2", "99"
    )
    assert "2 problems in the lock" in written.stderr
    assert "1 left out\n    toy 99: not settled\n" in written.stderr
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["toy.py", "0", "1", "2"], 0, "every problem was in the lock"),
        (["--strict", "toy.py", "0", "1", "2"], 0, "every problem was in the lock"),
        (["toy.py", "0", "1", "3"], 0, "not in the lock: 1 problem took the first alternative"),
        (["--strict", "toy.py", "0", "1", "3"], 3, "    toy 3: no record\n"),
        (["--strict", "toy.py", "7", "1", "3"], 7, "    toy 3: no record\n"),
    ],
)
def test_the_lock_decides_and_strict_tells_by_the_status(
    folder: Path, words: list[str], status: int, told: str
) -> None:
    done = run(folder, "--locked", "l.lock", *words)
    assert done.returncode == status
    assert done.stdout.splitlines() == [
        f"{n} {'fast' if n in '12' else 'slow'}" for n in words[words.index("toy.py") + 2 :]
    ]
    assert told in done.stderr
    assert "no trial was made" in done.stderr
    assert "nothing is measured or kept" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--strict"], "--strict: needs a lock"),
        (["--locked", "l.lock", "--write-lock", "m.lock"], "pass one of the two"),
        (["--locked", "l.lock", "--store", "s.sqlite"], "a locked run opens no store"),
        (["--locked", "l.lock", "--policy", "window:1-10"], "window:1-10 searches, and a locked"),
        (["--locked", "m.lock"], "cannot read the lock file 'm.lock'"),
        (["--write-lock", "nowhere/m.lock"], "cannot write a lock to 'nowhere/m.lock'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_program_runs(
    folder: Path, words: list[str], told: str
) -> None:
    done = run(folder, *words, "toy.py", "0", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_the_lock_is_a_file_that_a_store_imports(folder: Path) -> None:
    store = ["store", "import", "l.lock", "--store", "s.sqlite"]
    command = [sys.executable, "-m", "bestof", *store]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("imported 2 problems and 0 pins")
