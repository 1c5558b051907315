"""Follows docs/control.md word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"Save this as `([^`]+)`:\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL))
PROGRAMS = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if block not in FILES.values()
]
COMMANDS = [
    (command, [line for line in lines.splitlines() if line and line != "..."])
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command, lines in re.findall(r"^\$ (.*)\n((?:[^$\n].*\n|\n)*)", block, re.MULTILINE)
]


def run(command: str, folder: Path) -> str:
    """What a command printed, with paths as the page has them, and its status if it failed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "BESTOF_STORE": "off"},
        check=False,
    )
    printed = (done.stdout + done.stderr).replace(f"{folder.resolve()}{os.sep}", "")
    return f"{printed}exit status {done.returncode}\n" if done.returncode else printed


def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    assert len(COMMANDS) == 7
    for command, expected in COMMANDS:
        printed = run(command, tmp_path).splitlines()
        places = [printed.index(line) for line in expected if line in printed]
        assert len(places) == len(expected) > 0, (command, printed)
        assert places == sorted(places)


@pytest.mark.parametrize("number", range(2))
def test_the_programs_run_as_they_stand(tmp_path: Path, number: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[number])
    assert run("python program.py", tmp_path) == ("", "True 5 0\n")[number]
    assert len(PROGRAMS) == 5  # those of live checks, budgets and memory have a test of their own
