"""Each block of Python in these pages runs as it is pasted, after those above it on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bestof.torch as bt

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    bt.disable()


PAGES = [("torch.md", 5), ("store.md", 1), ("report.md", 1), ("anywhere.md", 2), ("tutorial.md", 4)]


@pytest.mark.parametrize(("page", "least"), PAGES)
def test_blocks_run(page: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        (DOCS / page).read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        shortened = block.replace("steps = 60", "steps = 2")  # of the tutorial
        exec(compile(shortened, page, "exec"), names)
