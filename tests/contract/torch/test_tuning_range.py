"""PaddlePaddle's configuration: kernels are tuned in a range of the program's steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PADDLES = {
    "kernel": {"enable": True, "tuning_range": [2, 12]},
    "layout": {"enable": True},
    "dataloader": {"enable": True, "tuning_steps": 20},
}
PROGRAM = """
import sys
import torch
from torch import nn
import bestof.torch as bt

counted, batches = sys.argv[1], map(int, sys.argv[2:])
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in batches:
    images = torch.randn(batch, 3, 16, 16)
    if counted == "optimizer":
        optimizer.zero_grad()
        model(images).sum().backward()
        optimizer.step()
    else:
        with torch.no_grad():
            model(images)
        if counted == "program":
            bt.step()
"""


def run(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The report of a run, and what it printed at its end."""
    (folder / "cnn.py").write_text(PROGRAM)
    (folder / "paddle.json").write_text(json.dumps(PADDLES))
    own = ["run", "--store", "off", "--report", "r.json"]
    command = [sys.executable, "-m", "bestof", *own, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "r.json").read_text()), done.stderr


def sources(report: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The problem and source of every decision that another than the only alternative has."""
    problems = [one for made in report["selectors"] for one in made["problems"]]
    return [(one["problem"], one["source"]) for one in problems if one["source"] != "only"]


@pytest.mark.parametrize("counted", ["optimizer", "program"])
@pytest.mark.parametrize("how", [["--config", "paddle.json"], ["--policy", "window:2-12"]])
def test_the_window_ends_and_what_comes_later_is_missed(
    tmp_path: Path, how: list[str], counted: str
) -> None:
    batches = ["4"] * 20 + ["5"] * 2
    report, told = run(tmp_path, *how, "--write-lock", "l.lock", "cnn.py", counted, *batches)
    found = sources(report)
    assert {source for _, source in found} <= {"measured", "window", None}
    # Passes of a layer whose joint kernel has won are not called any more, and stay undecided.
    layers = [one for one in found if one[1] is not None]
    assert len(layers) >= 4
    assert "steps 2 to 12, of 22 so far; hit rate " in told
    assert " 0 problems missed" not in told
    assert "problems missed" in report["run"]["window"]
    assert '"decision": ' in (tmp_path / "l.lock").read_text()
    assert "had no effect" not in told


def test_a_program_without_steps_is_told(tmp_path: Path) -> None:
    _, told = run(tmp_path, "--config", "paddle.json", "cnn.py", "nothing", *["4"] * 20)
    assert told.count("the window of steps 2-12 had no effect: the program counted no step") == 1
    assert "hit rate 0%" in told
