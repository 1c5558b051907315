"""Packages register rows by entry points; one that fails is told, and left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bestof
import bestof.torch as bt
from bestof.bench.operation import measure_operations
from bestof.errors import BestofWarning
from bestof.testing import check_alternative
from bestof.torch.ops import table
from bestof.torch.rows import entry_points

MODULE = """
import bestof.torch as bt

calls = []

def ours(pytorch, problem, x):
    calls.append(problem)
    return pytorch(x)

def register():
    bt.register("silu", "ours", ours)

def exits():
    raise SystemExit("no licence")

def half():
    bt.register("silu", "half", ours)
    raise OSError("no such library")

def fails():
    raise OSError("no such library")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a package with these entry points."""

    def install(points: str) -> None:
        (tmp_path / "ours_for_bestof.py").write_text(MODULE)
        info = tmp_path / "ours_for_bestof-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: ours-for-bestof\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[bestof.alternatives]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "ours_for_bestof", raising=False)
        monkeypatch.setattr(entry_points._State, "is_loaded", False)

    return install


X = torch.randn(512, 1024)
USES: dict[str, Callable[[], object]] = {
    "enable": lambda: bt.enable(),
    "set_config": lambda: bt.set_config(None),
    "a name in the configuration": lambda: bt.enable({"kernel": {"without": ["ours"]}}),
    "optimize": lambda: bt.optimize(nn.Sequential(nn.SiLU()).eval(), (X,)),
    "bench": lambda: measure_operations(["silu"], rounds=1, seconds=1e-6),
    "check": lambda: check_alternative("silu", "ours", {"small": (X,)}),
}


def names() -> list[str]:
    return [row.name for row in table.named("silu", "").rows]


@pytest.mark.parametrize("use", USES)
def test_the_first_use_registers_once(package: Callable[[str], None], use: str) -> None:
    package("ours = ours_for_bestof:register")
    assert "ours" not in names()
    USES[use]()
    assert names().count("ours") == 1
    bt.enable()
    assert names().count("ours") == 1


def test_a_row_of_a_package_is_chosen(package: Callable[[str], None]) -> None:
    package("ours = ours_for_bestof:register")
    bestof.use_policy("fixed:ours")
    bt.enable()
    F.silu(X)
    assert sys.modules["ours_for_bestof"].calls


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("ours_for_bestof:fails", "OSError: no such library"),
        ("ours_for_bestof:half", "OSError: no such library"),
        ("ours_for_bestof:exits", "SystemExit: no licence"),
        ("ours_for_bestof:nothing", "AttributeError: "),
        ("no_such_module:register", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("ours_for_bestof:calls", "TypeError: 'list' object is not callable"),
    ],
)
def test_one_that_fails_is_told_and_left_out(
    package: Callable[[str], None], point: str, told: str
) -> None:
    package(f"bad = {point}\nours = ours_for_bestof:register")
    expected = rf"the entry point bad = {point} of ours-for-bestof in .* was left out: {told}"
    with pytest.warns(BestofWarning, match=expected) as warned:
        bt.enable()
    assert len(warned) == 1
    assert "ours" in names()
    assert "half" not in names()
