"""`benchmarks/figures.py`: every table and picture of the pages has a version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MACHINES = (
    "| name | processor | peak of one thread | of two |\n|---|---|---|---|\n"
    "| Zen 4 | EPYC | 1 | 2 |\n"
)
TABLE = "| model | ms |\n|---|---|\n| VGG16 | 4.5 |\n"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import figures  # noqa: PLC0415  a program of that folder

    return figures


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", *settings, *words]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_every_figure_of_the_pages_has_a_version(figures: ModuleType) -> None:
    found = figures.read(ROOT)
    assert len(found) > 90
    assert not figures.faults(found, figures.processors(ROOT))


def test_the_pages_with_their_own_code_are_there(figures: ModuleType) -> None:
    for page, code in figures.CODE.items():
        assert all((ROOT / one).exists() for one in (page, *code)), page


def test_what_is_measured_for_a_claim_stands_where_its_link_leads() -> None:
    page = ROOT / "docs" / "results" / "claims.md"
    links = re.findall(r"\[([^\]]*\d[^\]]*)\]\(([\w./]+\.md)", page.read_text(encoding="utf-8"))
    assert len(links) > 25
    for text, target in links:
        there = (page.parent / target).read_text(encoding="utf-8")
        for number in re.findall(r"\d+(?:\.\d+)?", text):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", there), (text, target)


@pytest.mark.parametrize(
    ("text", "commits"),
    [
        (f"{TABLE}\n*Commit 0a1b2c3d, 2026-11-25, Zen 4.*\n", ["0a1b2c3d"]),
        (f"{TABLE}\n# Next\n*Commit 0a1b2c3d, 2026-11-25, Zen 4.*\n", [""]),
        (f"Here (commit 0a1b2c3d, 2026-11-25, Zen 4):\n{TABLE}\n![all](a.png)", ["0a1b2c3d"] * 2),
        ("| key | default |\n|---|---|\n| a | on |\n", []),
        (f"```\n{TABLE}```\n", []),
    ],
)
def test_a_version_belongs_to_the_figures_of_its_section(
    figures: ModuleType, text: str, commits: list[str]
) -> None:
    assert [one.commit for one in figures.figures_of("docs/page.md", text)] == commits


def test_an_age_counts_the_commits_of_the_code(
    figures: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "machines.md").write_text(MACHINES)
    (tmp_path / "src").mkdir()
    git(tmp_path, "init", "--quiet")
    for number in range(3):
        (tmp_path / "src" / "code.py").write_text(f"{number}\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", str(number))
    first = git(tmp_path, "rev-parse", "HEAD~2")[:8]
    page = tmp_path / "README.md"
    page.write_text(f"{TABLE}\nCommit {first}, 2026-11-25, Zen 4.\n")
    assert figures.main(tmp_path) == 0
    assert f"    2 {first} 2026-11-25 Zen 4" in capsys.readouterr().out
    page.write_text(f"{TABLE}\nCommit 00000000, 2026-11-25, Zen 4.\n")
    assert figures.main(tmp_path) == 1
    assert "git knows no commit 00000000" in capsys.readouterr().err
    page.write_text(f"{TABLE}\nCommit {first}, 2026-11-25, Zen 9.\n")
    assert figures.main(tmp_path) == 1
    assert "does not explain 'Zen 9'" in capsys.readouterr().err
    page.write_text(TABLE)
    assert figures.main(tmp_path) == 1
    assert "README.md:1: | model | ms |: has no line" in capsys.readouterr().err
