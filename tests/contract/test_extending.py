"""The page on extending names what exists, its rows lead to real tables, and its blocks run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bestof.torch.ops.table import named
from bestof.torch.rows.entry_points import GROUP
from fresh_process import fresh_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
# In a cell or sentence that names a file "there", the folder is that of the cell before.
PATHS = sorted(set(re.findall(r"`((?:src|native|tests|docs|benchmarks)/[\w./]+)`", PAGE)))
TABLES = re.findall(r"\| `([\w./]+)/NAME\.\w+` \| `(?:[\w]+` in `)?([\w./]+)`", PAGE)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_there(path: str) -> None:
    folder = path.rpartition("/NAME.")[0]
    assert (ROOT / (folder or path)).exists()


def test_every_row_has_its_table() -> None:
    assert len(TABLES) >= 6
    for folder, table in TABLES:
        nearby = (ROOT / folder / table, ROOT / folder / Path(table).name, ROOT / table)
        assert any(path.is_file() for path in nearby), (folder, table)


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from fresh_process(monkeypatch)


@pytest.mark.usefixtures("own_process")
def test_every_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    before = named("silu", "").rows
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "extending.md", "exec"), names)
    assert "cases passed" in capsys.readouterr().out
    assert named("silu", "").rows == before


def test_the_entry_point_is_one() -> None:
    ((group, name, value),) = re.findall(r'entry-points\."(.*)"\]\n(\w+) = "(.*)"', PAGE)
    point = EntryPoint(name, value, group)
    assert (group, point.module, point.attr) == (GROUP, "our_package.kernels", "register")
