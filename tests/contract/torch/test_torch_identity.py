"""Two processes of one program share their decisions, because identities are equal in both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, torch, bestof, bestof.torch as bt
from bestof.selection.state.registry import selectors
bestof.use_policy("rounds:rounds=1")
bestof.use_store(bestof.selection.open_store(sys.argv[1]))
torch.manual_seed(0)
bt.enable()
layer = torch.nn.Conv2d(16, 16, 3, padding=1)
for _ in range(40):
    x = torch.randn(2, 16, 28, 28, requires_grad=True)
    torch.nn.functional.max_pool2d(layer(x), 2).sum().backward()
versions = {s.name: [one.version for one in s._knowledge.alternatives] for s in selectors()}
found = [(s.name, p) for s in selectors() for p in s.report().problems]
sources = [[name, p.problem, p.decision, p.source] for name, p in found]
print(json.dumps([versions, sources]))
"""


@pytest.mark.long
def test_two_processes_of_one_program_share_decisions(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, str(script), f"sqlite:///{tmp_path}/store.sqlite"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert "another function" not in done.stderr
        found.append(json.loads(done.stdout))
    (versions, first), (again, second) = found
    assert versions == again
    assert all(version for listed in versions.values() for version in listed)
    decided = {
        (name, problem): decision
        for name, problem, decision, source in first
        if source == "measured"
    }
    assert decided, first
    # A decision of the layer leaves out passes that it does not need; those are not met again.
    met = {(name, problem): (decision, source) for name, problem, decision, source in second}
    shared = {key: found for key, found in met.items() if key in decided}
    assert shared, second
    assert shared == {key: (decided[key], "stored") for key in shared}
