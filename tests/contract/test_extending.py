"""The page on extending names existing files and folders, and its rows lead to real tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
