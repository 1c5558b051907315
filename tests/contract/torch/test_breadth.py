"""One command prints the tables of what `enable` gains beyond 2-D convolutions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from bestof.cli import bench_operation

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_each_table_gets_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    called: list[tuple[str, list[str], int]] = []

    def noting(name: str) -> object:
        return lambda arguments: called.append((name, arguments, torch.get_num_threads()))

    for name in ("other_convolutions", "autocast"):
        monkeypatch.setattr(importlib.import_module(name), "main", noting(name))
    monkeypatch.setattr(bench_operation, "call", noting("operations"))
    monkeypatch.setattr(sys, "argv", ["breadth.py", "--threads", "3", "--rounds", "2"])
    importlib.import_module("breadth").main()
    options = ["--threads", "3", "--rounds", "2"]
    assert called == [
        ("other_convolutions", options, 1),
        ("autocast", options, 1),
        ("operations", [], 3),
    ]
