"""`make demo` runs the program as a user would, and says where the command is."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe() -> list[str]:
    """The commands of `make demo`, as make would run them."""
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    # -o: nothing is installed, whatever is out of date.
    done = subprocess.run(
        ["make", "-n", "-o", ".venv/installed", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("make")]


def test_the_demo_runs_the_default_policy(recipe: list[str]) -> None:
    (run,) = [line for line in recipe if "bestof run" in line]
    assert "--policy" not in run


def test_the_demo_makes_the_folder_of_its_report(recipe: list[str]) -> None:
    """A build of the kernels in another folder leaves none."""
    (run,) = [place for place, line in enumerate(recipe) if "bestof run" in line]
    assert "--report build/" in recipe[run]
    assert "mkdir -p build" in recipe[:run]


def test_the_last_line_and_the_readme_say_where_the_command_is(recipe: list[str]) -> None:
    assert recipe[-1].startswith("echo")
    assert ".venv/bin/bestof" in recipe[-1]
    assert ".venv/bin/bestof" in (ROOT / "README.md").read_text(encoding="utf-8")


ELAPSED = [sys.executable, str(ROOT / ".ci" / "elapsed.py"), "builds"]


def test_setting_up_shows_on_a_terminal_how_long_it_has_taken() -> None:
    ours, theirs = pty.openpty()
    code = "import sys, time; time.sleep(1.2); sys.exit(3)"
    with subprocess.Popen([*ELAPSED, sys.executable, "-c", code], stderr=theirs) as started:
        assert started.wait(timeout=60) == 3
    shown = os.read(ours, 1 << 16).decode()
    assert re.findall(r"builds: (\d:\d\d)", shown)[:2] == ["0:00", "0:01"]


def test_a_log_of_setting_up_has_one_line() -> None:
    command = [*ELAPSED, sys.executable, "-c", "print('done')"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("builds\ndone\n", "")


def test_the_page_of_the_demo_is_made_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import demo_page  # noqa: PLC0415  a program of that folder

    assert demo_page.command()[1:5] == ["-m", "bestof", "run", "--beside"]
    printed = "  0%|  | 0/60\r100%|##| 60/60\n94% of 224 other images are told right\n"
    printed += "bestof: train.py ran 9 s\n  kept in    sqlite:////tmp/a/b.sqlite\n"
    printed += f"  the report is in {ROOT}/build/demo.json\n"
    report = demo_page.report_of(printed, Path("/tmp/a/b.sqlite"))
    assert report.splitlines() == [
        "94% of 224 other images are told right",
        "bestof: train.py ran 9 s",
        "  kept in    sqlite:////home/ada/.cache/bestof/decisions.sqlite",
        "  the report is in build/demo.json",
    ]
    page = demo_page.PAGE.read_text(encoding="utf-8")
    made = demo_page.rewritten(page, (report, "second"), "0a1b2c3d", "0.5 on 8 processors")
    assert f"```\n{report}\n```\n" in made
    assert made.count("```\nsecond\n```\n") == 1
    assert "commit 0a1b2c3d." in made
    assert "Load before the first run: 0.5 on 8 processors." in made
    assert made[made.index("`as is`") :] == page[page.index("`as is`") :]
