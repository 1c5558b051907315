"""`benchmarks/instructions.py` reads what callgrind has counted."""

from __future__ import annotations

import platform
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]

DUMP = """\
# callgrind format
positions: line
events: Ir
summary: 1075

ob=(1) /usr/lib/libpython3.11.so.1.0
fn=(1) _PyEval_EvalFrameDefault
0 20
cob=(2) /site-packages/bestof/selection/_hot_path.cpython-311-x86_64-linux-gnu.so
cfn=(2) call
calls=1 0
0 1000
+3 5

ob=(2)
fn=(2)
* 50
cob=(3) /site-packages/torch/lib/libtorch_cpu.so
cfn=(3) conv2d
calls=4 0
* 900

ob=(3)
fn=(3)
7 600
-2 100

ob=(4) /site-packages/bestof/kernels/_native.cpython-311-x86_64-linux-gnu.so
fn=(4) ???
0 300
"""


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import instructions  # noqa: PLC0415  a program of that folder

    return instructions


def test_each_instruction_is_counted_once_for_the_library_that_it_is_in(
    instructions: ModuleType, tmp_path: Path
) -> None:
    dump = tmp_path / "out.1"
    dump.write_text(DUMP)
    found = instructions.instructions(dump)
    assert found == {"rest": 25, "shims": 50, "PyTorch": 700, "kernels": 300}
    assert found.total() == 1075  # as the summary of the dump says


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a request is code of x86-64")
def test_requests_do_nothing_without_valgrind(instructions: ModuleType) -> None:
    instructions._ask(0)


def test_a_row_shows_the_ratio_to_the_other_environment(
    instructions: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    count = type(instructions.instructions(Path("/dev/null")))
    now = {"product": count(kernels=900, shims=100, PyTorch=0, rest=11)}
    before = {"product": count(kernels=900, shims=90, PyTorch=0, rest=10)}
    instructions.show(now, before)
    _, row, other, *_ = capsys.readouterr().out.splitlines()
    assert row.split() == ["product", "1,011", "900", "100", "0", "11", "1.011", "1.110"]
    assert other.split() == ["before", "1,000", "900", "90", "0", "10"]
