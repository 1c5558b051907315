"""A locked run makes no trial, and the same bits in every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, sys
import torch
from torch import nn
import bestof.torch as bt

torch.manual_seed(0)
torch.set_num_threads(2)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)
images, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
digest = hashlib.sha256()
if sys.argv[1] == "train":
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(int(sys.argv[2])):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().numpy().tobytes())
    for one in model.parameters():
        digest.update(one.detach().numpy().tobytes() + one.grad.numpy().tobytes())
else:
    plan = bt.optimize(model.eval(), images)
    for _ in range(3):
        digest.update(plan(images).numpy().tobytes())
found = bt.summary()
print(digest.hexdigest(), found.trials, len(found.not_in_lock))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "cnn.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "bestof", "run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", [("train", "40"), ("plan",)], ids=lambda way: way[0])
def test_two_locked_runs_give_the_same_bits_without_a_trial(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    free = run(tmp_path, "--store", "off", "--write-lock", "cnn.lock", "cnn.py", *way)
    assert (free.returncode, "in the lock" in free.stderr) == (0, True), free.stderr
    one, other = (
        run(tmp_path, "--locked", "cnn.lock", "--report", "r.json", "cnn.py", *way)
        for _ in range(2)
    )
    assert (one.returncode, other.returncode) == (0, 0), one.stderr
    assert one.stdout == other.stdout
    bits, trials, _ = one.stdout.split()
    assert (len(bits), trials) == (64, "0")
    assert "no trial was made" in one.stderr
    assert '"source": "locked"' in (tmp_path / "r.json").read_text()
    assert '"source": "measured"' not in (tmp_path / "r.json").read_text()
