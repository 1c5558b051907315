"""The benchmark of generation runs to its end, and its plan gives the tokens of its model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "generation.py"


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generation", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("name", ["own", "llama", "gpt2"])
def test_the_plan_writes_the_tokens_and_caches_of_the_model(name: str) -> None:
    work = program().Work.of(name, 128, 2, 8, torch.float32)
    plan = program().bt.optimize(work.model, work.inputs)
    token, _, *caches = work.inputs
    theirs, ours = [[one.clone() for one in caches] for _ in range(2)]
    with torch.no_grad():
        for place in range(8):
            position = torch.tensor([place])
            expected = work.model(token, position, *theirs)
            torch.testing.assert_close(plan(token, position, *ours), expected, rtol=1e-4, atol=1e-4)
            token = expected if name == "own" else expected[:, -1].argmax(-1, keepdim=True)
    for expected, before, got in zip(theirs, caches, ours, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert not torch.equal(got, before)


@pytest.mark.long
def test_the_table_has_a_row_for_each_dtype_and_cache() -> None:
    given = ["--width", "128", "--blocks", "1", "--places", "8", "16", "--rounds", "2"]
    printed = subprocess.run(
        [sys.executable, str(PROGRAM), *given], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split()[1:3] for line in printed.splitlines()[2:]]
    assert rows == [[dtype, places] for dtype in ("float32", "bfloat16") for places in ("8", "16")]
