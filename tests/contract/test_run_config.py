"""`bestof run --config FILE`: checked before the program runs, and in force when it imports
PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    loader = DataLoader(TensorDataset(torch.arange(12.0)), 4)
    print(type(iter(loader)).__name__, sum(float(batch[0].sum()) for batch in loader))

main()
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "bestof", "run", *options, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_file_says_what_is_tuned(tmp_path: Path) -> None:
    config = {"kernel": {"enable": False}, "dataloader": {"enable": True}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run(tmp_path, "--config", "config.json")
    assert (done.returncode, done.stdout.split()) == (0, ["Epoch", "66.0"])
    assert "loader TensorDataset: no workers" in done.stderr


def test_without_a_file_loaders_are_left_alone(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["_SingleProcessDataLoaderIter", "66.0"])
    assert "loader" not in done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON"),
        ('{"dataloader": {"workers": [3, 1]}}', "dataloader.workers: the range is empty"),
        ('{"datalaoder": {}}', "unknown key 'datalaoder'; did you mean 'dataloader'"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_used_ends_it_before_the_program(
    tmp_path: Path, content: str | None, told: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = run(tmp_path, "--config", "config.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
