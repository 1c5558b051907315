"""A locked run makes no trial, and the same bits in every run."""

from __future__ import annotations

import re
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
images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
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


@pytest.mark.parametrize("way", [("train", "60"), ("plan",)], ids=lambda way: way[0])
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


ENABLES = """
import sys
import torch, bestof
import bestof.torch as bt
from bestof.errors import InvalidArgument
from bestof.torch.dispatch.overrides import overrides

def told(call, *arguments):
    try:
        call(*arguments)
    except InvalidArgument as error:
        return str(error)

locked = {"kernel": {"locked": sys.argv[1]}}
print(told(bt.enabled(locked).__enter__))
print(told(bt.enable, locked), bool(overrides() and bt.summary().keeps_freed))
bt.enable()
print(torch.conv2d(torch.ones(2, 3, 20, 20), torch.ones(8, 3, 3, 3)).sum().item())
model, images = torch.nn.Conv2d(3, 8, 3).eval(), torch.ones(1, 3, 9, 9)
print(bt.summary().trials, told(bt.optimize, model, images))
print(told(lambda: bt.optimize(model, images, memory=1)))
print(told(lambda: bt.optimize(model, images, engines=["openvino"])))
"""


def test_a_lock_of_another_pytorch_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    writes = ["--store", "off", "--policy", "window:0-4", "--write-lock", "cnn.lock"]
    free = run(tmp_path, *writes, "cnn.py", "train", "6")
    assert free.returncode == 0, free.stderr
    text = (tmp_path / "cnn.lock").read_text()
    assert "torch==" in text
    (tmp_path / "other.lock").write_text(text.replace("torch==", "torch==1."))
    (tmp_path / "enables.py").write_text(ENABLES)

    def lines(lock: str) -> list[str]:
        command = [sys.executable, "enables.py", lock]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    block, refused, *_ = lines("other.lock")
    assert block == "config: kernel.locked: a lock holds for the whole process; pass it to enable()"
    assert re.search(r"other.lock: 0 of its \d+ records of PyTorch's operations fit", refused)
    assert refused.endswith("False")
    _, taken, result, settled, memory, engines = lines("cnn.lock")
    assert (taken, result, settled) == ("None True", "139968.0", "0 None")
    assert memory.startswith("optimize: memory: algorithms are weighed by their measured times")
    assert engines.endswith("a locked run measures nothing; leave engines out")
