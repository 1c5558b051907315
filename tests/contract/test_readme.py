"""README: its Python examples run, its links lead somewhere, and its first page defines the
words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
WORDS = (
    *("problem", "alternative", "trial", "decision", "settled", "pass", "PyTorch's own kernel"),
    *("packed weights", "plan", "drift"),
)


def test_the_selector_prints_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    exec(EXAMPLES[0], {})
    shown = capsys.readouterr().out
    assert shown.startswith("total\n")
    assert "3000: " in shown
    assert "trials took" in shown


def test_the_plan_computes_the_same_and_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(EXAMPLES[1], names)
    images = torch.randn(2, 3, 64, 64)
    assert (tmp_path / "model.plan").stat().st_size > 0
    with torch.no_grad():
        # 27 products a sum: float32 errs by less than 1e-5 of results near 1.
        torch.testing.assert_close(
            names["plan"](images), names["model"](images), rtol=1e-5, atol=1e-5
        )
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/extending.md", "docs/install.md"]
)
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (path.parent / link).exists(), link


def test_the_first_page_defines_the_words() -> None:
    first = TEXT[: TEXT.index("## A selector for any function")]
    for word in WORDS:
        assert re.search(rf"^\| {re.escape(word)} \| .+ \|$", first, re.MULTILINE), word
