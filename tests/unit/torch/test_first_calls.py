"""A first call imports nothing: the imports of a process are those of `enable`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import torch
from torch.nn import functional as F
import bestof.torch as bt
from bestof.selection import Fixed, use_policy

class Order:
    def start(self, alternatives):
        name = next((one for one in NAMES if one in alternatives), alternatives[0])
        return Fixed(name).start(alternatives)

NAMES = json.loads(sys.argv[1])
if NAMES:
    use_policy(Order())
torch.set_num_threads(1)
bt.enable({"kernel": {"accuracy": "relaxed"}})
before = set(sys.modules)

def conv(x):
    return torch.conv2d(x, torch.randn(32, 16, 3, 3, requires_grad=x.requires_grad), padding=1)

def pool(x):
    return F.max_pool2d(x, 3, 2, 1)

def attend(x):
    return F.scaled_dot_product_attention(x, x, x)

calls = {
    "convolution": (conv, (1, 16, 28, 28)),
    "pooling": (pool, (1, 32, 80, 80)),
    "product": (lambda x: F.linear(x, x), (192, 192)),
    "products": (lambda x: x @ x, (4, 128, 128)),
    "attention": (attend, (1, 4, 200, 64)),
    "focal loss": (lambda x: bt.sigmoid_focal_loss(x, torch.zeros_like(x)), (500, 80)),
}
found = {}
for name, (call, shape) in calls.items():
    for _ in range(6):
        with torch.no_grad():
            call(torch.randn(shape))
        call(torch.randn(shape, requires_grad=True)).sum().backward()
    found[name] = sorted(set(sys.modules) - before)
    before = set(sys.modules)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("names", "store"),
    [
        ([], "off"),
        ([], "a file"),
        (["native winograd4", "native blocked packed", "native", "native transposition"], "off"),
        (["channels last", "onednn", "independent"], "off"),
        (["fft", "independent"], "off"),
    ],
    ids=["races", "races with a store", "native", "channels last", "fft"],
)
@pytest.mark.long
def test_a_first_call_imports_nothing(names: list[str], store: str, tmp_path: Path) -> None:
    where = "off" if store == "off" else str(tmp_path / "decisions.sqlite")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(names)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "BESTOF_STORE": where},
    )
    found = json.loads(done.stdout)
    assert found == {name: [] for name in found}
