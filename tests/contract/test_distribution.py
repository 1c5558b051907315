"""Whatever tells a user what to install names this project's own distribution.

`bestof` on the Python Package Index is another project, whose code would run on the user's
machine.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import bestof
from bestof import distribution

ROOT = Path(__file__).parents[2]
FOREIGN = re.compile(
    r"(?<![\w/.-])bestof\[|(?:pip|uv|poetry)[^\n'\"]* (?:install|add) ['\"]?bestof\b(?!-)"
)
TEXTS = sorted(
    path
    for folder in ("src", "docs", "examples", "benchmarks", ".")
    for path in (ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.*"))
    if path.suffix in {".md", ".py", ".toml", ".cfg", ".sh", ".txt"}
)
TEXTS += [ROOT / name for name in ("CITATION.cff", "pyproject.toml", "Makefile")]


def test_the_metadata_are_those_that_messages_name() -> None:
    installed = metadata.metadata(distribution.NAME)
    assert installed["Name"] == distribution.NAME
    assert installed["Version"] == distribution.VERSION == bestof.__version__


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {distribution.VERSION}\n" in text
    assert distribution.NAME in text


@pytest.mark.parametrize(
    "wrong", ["pip install 'bestof[torch]'", "pip install bestof", "bestof[dev]"]
)
def test_the_pattern_finds_the_foreign_name(wrong: str) -> None:
    assert FOREIGN.search(wrong)
    assert not FOREIGN.search(wrong.replace("bestof", distribution.NAME))


def test_no_text_names_the_foreign_distribution() -> None:
    assert len(TEXTS) > 300  # the test has lost its object otherwise
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in TEXTS
        for match in [FOREIGN.search(path.read_text(encoding="utf-8"))]
        if match
    ]
    assert not found


@pytest.mark.parametrize(
    "extra", ["kernels", "torch", "view", "plot", "postgresql", "peers", "dev"]
)
def test_each_extra_exists(extra: str) -> None:
    assert extra in metadata.metadata(distribution.NAME).get_all("Provides-Extra")
    assert distribution.install(extra) == f"pip install '{distribution.NAME}[{extra}]'"
