"""`bestof run` with the real engine and a real store: what is remembered, and what is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each call takes a second: with times of the machine, late calls might prolong a search, or reopen
# one.
PROGRAM = """
from itertools import count
from bestof import BestOf
alternatives = [("a", sum), ("b", lambda x: sum(list(x)))]
selector = BestOf("sum", alternatives, len, clock=map(float, count()).__next__)
for _ in range(60):
    selector([1, 2, 3])
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bestof", "run", *options, "program.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env=dict(os.environ)
    )


def test_the_second_run_starts_settled_and_names_the_store_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--store", str(tmp_path / "kept.sqlite"), "--policy", "rounds:rounds=3")
    first, second = run(tmp_path, *options), run(tmp_path, *options)
    for done in (first, second):
        assert "kept.sqlite" in done.stderr
    assert "6 trials" in first.stderr
    assert "no trial was made" in second.stderr


def test_verbose_tells_trials_and_decisions_as_they_happen(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--store", "off", "--policy", "rounds:rounds=2")
    told = run(tmp_path, *options, "--verbose").stderr.splitlines()
    lines = [line.partition("problem 3: ")[2] for line in told if "problem 3: " in line]
    # The last trial is told when the call ends, after the decision that it brings.
    trials = ["a took 1.00 s", "b took 1.00 s"] * 2
    assert lines == [*trials[:3], "a (measured)", trials[3]]
    assert "problem 3: " not in run(tmp_path, *options).stderr


def test_a_store_that_is_off_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert "the store is off" in run(tmp_path, "--store", "off").stderr


TRAINING = """
import bestof.torch  # which imports PyTorch
import torch
model = torch.nn.Conv2d(8, 8, 3)
for _ in range(3):
    model(torch.randn(1, 8, 20, 20)).sum().backward()
"""


def test_a_program_may_import_bestof_first(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINING)
    told = run(tmp_path, "--store", "off").stderr
    assert "not tuned" not in told
    assert "Conv2d" in told


@pytest.mark.long
def test_a_server_that_is_away_is_not_said_to_keep_decisions(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    (tmp_path / "program.py").write_text(PROGRAM)
    told = run(tmp_path, "--store", "postgresql://nobody@127.0.0.1:1/decisions").stderr
    assert "not kept" in told
    assert "kept in" not in told
    assert "decisions are lost: 1" in told
