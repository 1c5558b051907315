"""`bestof run` holds for the processes that its program starts, and its summary counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# The clock is a fake: the winner is known, and 60 calls settle it.
TRAIN = """
import sys
import torch
from bestof import BestOf

clock = [0.0]
def slow(n):
    clock[0] += 3.0
    return "slow"
def fast(n):
    clock[0] += 1.0
    return "fast"

toy = BestOf("toy", [("slow", slow), ("fast", fast)], lambda n: n, clock=lambda: clock[0])

def train(rank, problems):
    for n in problems:
        print(n, [toy(n) for _ in range(60)][-1], flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (list(map(int, sys.argv[1:])),), nprocs=1)
"""

# The child starts in another directory.
ASK = """
import os, subprocess, sys
child = '''
import sys, torch
enable = sys.modules.get("bestof.torch.enable")
print(enable and (enable._State.everywhere.pooling, enable._State.everywhere.accuracy))
'''
os.chdir("/")
for wanted in ({}, {"BESTOF": "off"}):
    subprocess.run([sys.executable, "-c", child], env={**os.environ, **wanted}, check=True)
"""


def run(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bestof", "run", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), **(environment or {})},
        check=False,
        timeout=240,
    )


def test_spawned_processes_write_and_obey_the_lock(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    written = run(tmp_path, "--store", "off", "--write-lock", "l.lock", "train.py", "1")
    assert written.stdout == "1 fast\n"
    assert "  1 problem in the lock " in written.stderr
    locked = run(tmp_path, "--locked", "l.lock", "--strict", "train.py", "1", "3")
    assert locked.stdout == "1 fast\n3 slow\n"
    assert "no trial was made" in locked.stderr
    assert "    toy 3: no record\n" in locked.stderr
    assert locked.returncode == 3
    assert list(tmp_path.glob("bestof-summary-*")) == []


# Files as of processes that were killed, and of an older bestof.
LEAVE = """
import os
from pathlib import Path

folder = Path(os.environ["BESTOF_SUMMARY_FOLDER"])
folder.mkdir()
for number, text in enumerate(("", "1", '{"report": 1, "more": 1}', "[" * 100_000)):
    (folder / f"{number}.json").write_text(text)
(folder / ".5.json.0a1b").write_text("{")
"""


def test_damaged_files_do_not_end_the_summary_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(LEAVE)
    kept = [tmp_path / f"bestof-summary-{name}" for name in (f"{os.getpid()}-a", "4194305-b")]
    old = tmp_path / "bestof-summary-4194305-c"  # of a process that was killed; none has the number
    for one in (*kept, old):
        one.mkdir()
    (tmp_path / f"bestof-summary-{10**30}-d").touch()  # of no process
    for one in (kept[0], old):
        os.utime(one, (0, 0))
    done = run(tmp_path, "--store", "off", "leave.py")
    assert done.stderr.startswith("bestof: leave.py ran ")
    assert "Traceback" not in done.stderr
    assert sorted(filter(Path.is_dir, tmp_path.glob("bestof-summary-*"))) == sorted(kept)


# The lock is gone when the child starts, or the child starts in another directory.
MOVE = """
import os, subprocess, sys
if sys.argv[1] == "remove":
    os.remove("l.lock")
else:
    os.mkdir("other")
    os.chdir("other")
subprocess.run([sys.executable, "-c", "import torch; print('ran')"], check=True)
"""


@pytest.mark.parametrize(("way", "status"), [("remove", 3), ("enter", 0)])
def test_a_lock_of_the_environment_holds_in_the_child(
    way: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "move.py").write_text(MOVE)
    alone = TRAIN.replace("import torch\n", "").partition("if __name__")[0] + "train(0, [1])"
    (tmp_path / "alone.py").write_text(alone)
    run(tmp_path, "--store", "off", "--write-lock", "l.lock", "alone.py")
    done = run(tmp_path, "--strict", "move.py", way, environment={"BESTOF_LOCKED": "l.lock"})
    assert done.stdout == "ran\n"
    assert done.returncode == status, done.stderr
    assert ("PyTorch is not tuned, although" in done.stderr) == (status == 3)
    assert ("    PyTorch every operation: it is not tuned" in done.stderr) == (status == 3)


@pytest.mark.long
def test_the_summary_and_the_report_count_all_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--store", "kept.sqlite", "--report", "r.json", "train.py", "1")
    done = run(tmp_path, *words, environment={"BESTOF": "on", "BESTOF_SUMMARY": "on"})
    titles = [line for line in done.stderr.splitlines() if line.startswith("bestof: ")]
    assert len(titles) == 1
    assert titles[0].startswith("bestof: train.py, 2 processes ran ")
    assert "toy 1 " in done.stderr
    assert '"toy"' in (tmp_path / "r.json").read_text()
    again = run(tmp_path, *words)
    assert "no trial was made" in again.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), (True, "float32")),
        (("--accuracy", "exact"), (True, "exact")),
        (("--config", "c.json"), (False, "relaxed")),
    ],
)
def test_options_hold_in_another_directory_and_off_is_off(
    words: tuple[str, ...], found: tuple[bool, str], tmp_path: Path
) -> None:
    (tmp_path / "c.json").write_text('{"kernel": {"pooling": false, "accuracy": "relaxed"}}')
    (tmp_path / "ask.py").write_text(ASK)
    done = run(tmp_path, "--store", "off", *words, "ask.py")
    assert done.stdout == f"{found}\nNone\n", done.stderr


def test_options_that_cannot_be_read_are_told_and_the_child_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('ran')"],
        capture_output=True,
        text=True,
        env={**os.environ, "BESTOF": "bestof run --config nowhere.json"},
        check=True,
        timeout=240,
    )
    assert done.stdout == "ran\n"
    assert "PyTorch is not tuned, although BESTOF=bestof run" in done.stderr
    assert "nowhere.json" in done.stderr
