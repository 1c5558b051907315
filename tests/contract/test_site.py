"""The site of the documentation: what its pages list is what there is."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = (*ROOT.glob("src/bestof/**/*.py"), *ROOT.glob("src/bestof_autoload/*.py"))


def extension(name: str) -> ModuleType:
    pytest.importorskip("sphinx")
    found = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_variable_of_the_environment_has_its_line() -> None:
    read = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r'"(BESTOF(?:_[A-Z]+)*)"', text))
    # The others are for child processes of bestof.
    internal = {"BESTOF_SUMMARY_FOLDER", "BESTOF_TRYING_REGISTRATION", "BESTOF_SCALE_LAUNCHER"}
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(BESTOF\w*)`", page, re.MULTILINE)
    assert set(listed) == read - internal
    assert len(listed) == len(set(listed))


def test_every_command_has_its_place() -> None:
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"^```\{command-help\} (.+)$", page, re.MULTILINE)
    assert listed == re.findall(r"^## bestof (.+)$", page, re.MULTILINE)
    help_of = extension("command_help").help_of
    there = []
    for command in re.findall(
        r"^  ([\w-]+) {2,}", help_of([]).partition("commands:")[2], re.MULTILINE
    ):
        lines = help_of([command])
        section = re.search(r"^(?:  ACTION|benchmarks:)\n((?:    ?\w.*\n| +\S.*\n)+)", lines, re.M)
        inner = re.findall(r"^ {2,4}([\w-]+) {2,}", section[1], re.MULTILINE) if section else []
        there += [f"{command} {one}" for one in inner] or [command]
    assert listed == there


def test_every_page_is_reached_from_the_first() -> None:
    first = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([\w/]+)$", first, re.MULTILINE))
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.glob("**/*.md")}
    assert "results/*" in first
    assert {one for one in pages if not one.startswith("results/")} - {"index"} == listed


def test_docstrings_list_their_parameters() -> None:
    given = [
        "Do it.",
        "",
        "first, second (2): what |x| is,",
        "    and more.",
        "other: text",
        "Raises Error. It says:",
        "    a = b",
        "The end.",
    ]
    assert extension("docstring_fields").fields(given) == [
        "Do it.",
        "",
        r"- ``first``, ``second`` (2): what \|x\| is,",
        "  and more.",
        "- ``other``: text",
        "",
        "Raises Error. It says::",
        "",
        "    a = b",
        "",
        "The end.",
    ]


def test_the_tutorials_script_runs_tuned(tmp_path: Path) -> None:
    """The script of the tutorial, with fewer steps, by the command that the tutorial gives."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(import time\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    script = tmp_path / "digits.py"
    script.write_text(block[1].replace("steps = 60", "steps = 4"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bestof", "run", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^4 steps in .* loss \d\.\d\d$", done.stdout, re.MULTILINE)
