"""`bestof doctor` on real scripts that are in a trap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import pytest

from bestof.cli import doctor as command
from bestof.doctor.table import traps

# Its clock is moved by hand: a step is twice as slow unless the optimizer is fused. The load of the
# machine decides nothing, and neither do the other traps that are measured by steps.
SCRIPT = """
import torch
from bestof.doctor import table
from bestof.recipe import step_clock

now = 0.0
step_clock.perf_counter = lambda: now
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters())
print("words of the script")
while True:
    optimizer.zero_grad()
    model(torch.ones(3, 8)).sum().backward()
    now += 0.2 if optimizer.param_groups[0]["fused"] else 0.4
    optimizer.step()
"""


def doctor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bestof", "doctor", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["trap"]: one for one in report["findings"]}


def test_a_trap_of_a_script_is_measured_on_its_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = doctor(tmp_path, "--json", "--seconds", "30", "train.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["steps"] > 3
    found = by_name(report)
    measured = [one.name for one in traps(True) if one.name != "slow kernels"]
    assert set(measured) <= found.keys()
    optimizer = found["optimizer not fused"]
    assert optimizer["caught"] is True
    assert optimizer["factor"] == pytest.approx(2.0)
    assert optimizer["cure"] == "Adam(..., fused=True)"
    assert found["threads"]["caught"] is False  # the clock does not depend on threads
    assert found["two OpenMP runtimes"]["caught"] is not None


@pytest.mark.long
def test_without_a_script_the_machine_is_examined(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--seconds", "5")
    assert done.returncode == 0, done.stderr
    assert "examining a small training on this machine" in done.stderr
    assert "that were looked for" in done.stdout
    assert "emulated half types" in done.stdout
    assert "optimizer not fused" not in done.stdout  # a trap of programs
    assert max(map(len, done.stdout.splitlines())) <= 140
    assert "\x1b" not in done.stdout


def test_a_script_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('the data are missing')\n")
    done = doctor(tmp_path, "fails.py")
    assert done.returncode == 1
    assert "the data are missing" in done.stderr
    assert done.stdout == ""


def test_a_script_that_fails_before_its_first_step_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import torch\nprint('begun')\nint('many')\n")
    done = doctor(tmp_path, "fails.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "begun" in done.stderr
    assert "invalid literal for int()" in done.stderr
    assert "fails.py failed after 0 steps" in done.stderr
    done = doctor(tmp_path, "--json", "fails.py")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["steps"], report["findings"]) == (0, [])
    assert "invalid literal for int()" in report["error"]


def test_a_script_without_torch_is_told(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('hello')\n")
    done = doctor(tmp_path, "plain.py")
    assert done.returncode == 1
    assert "plain.py never imported torch" in done.stderr


def test_a_script_without_steps_is_told_what_gives_it_more_time(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("import torch\n")
    done = doctor(tmp_path, "nothing.py")
    assert done.returncode == 0
    assert "no step ended within 35 s" in done.stderr
    assert "--seconds 300" in done.stderr


# Forks, and programs that inherit all that is open, keep no pipe open. A fork that ends reports
# nothing.
CHILDREN = """
import os, subprocess, sys, time
import torch

if os.fork() == 0:
    sys.exit(0)
os.wait()
if os.fork() == 0:
    time.sleep(200)
    os._exit(0)
subprocess.Popen(["sleep", "200"], close_fds=False)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
for _ in range(3):
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
"""


def test_a_script_with_few_steps_is_told_what_gives_it_more(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = doctor(tmp_path, "children.py")
    assert "? " in done.stdout
    assert "a higher --seconds gives more steps" in done.stderr


def test_children_of_a_script_hide_no_findings(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = doctor(tmp_path, "--json", "children.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["error"] is None
    assert report["steps"] == 3


# A fork does not keep the descriptor of the report, so one of its files gets the same number.
FORKS = """
import os, torch

if os.fork() == 0:
    files = [open("file.txt", "w") for _ in range(9)]
    if os.fork() == 0:
        os._exit(len([os.fstat(one.fileno()) for one in files]) - 9)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
with open("status.txt", "w") as file:
    file.write(str(os.wait()[1]))
"""


def test_a_fork_of_a_fork_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    doctor(tmp_path, "--seconds", "1", "forks.py")
    assert (tmp_path / "status.txt").read_text() == "0"


# What `bestof doctor` reads of a process, and what of that it takes.
WRITES = {
    "print('early')": b"early",
    "print('early'); time.sleep(200)": b"early",
    "print('early'); print('late')": b"late",
    "print('early'); print('la', end='')": b"early",
    "print('la', end='')": b"",
    "pass": b"",
}


@pytest.mark.parametrize("writes", WRITES)
def test_the_last_whole_report_counts(writes: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-uc", f"import time; {writes}"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        select([process.stdout], [], [], 200.0)
        patience = 1.0 if "sleep" in writes else 200.0
        report = command._read(process.stdout.fileno(), process, monotonic() + patience)
        assert report == WRITES[writes]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_script_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    done = doctor(tmp_path, "missing.py")
    assert done.returncode == 2
    assert "cannot run 'missing.py'" in done.stderr
