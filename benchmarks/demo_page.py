"""Run `make demo` twice with an empty store, and write what it prints to docs/results/demo.md.

    python benchmarks/demo_page.py

The first run makes trials, and the second starts with its decisions. Takes some minutes; other
programs disturb the times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "demo.md"
_SHOWN = "/home/ada/.cache/bestof/decisions.sqlite"  # where a user's store would be


def command() -> list[str]:
    """Return the words of the demo's command, as the Makefile has it."""
    asked = ["make", "-n", "-o", ".venv/installed", "demo"]
    lines = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (one for one in lines.splitlines() if " bestof run " in one)
    return [sys.executable, *line.split()[1:]]


def report_of(printed: str, store: Path) -> str:
    """Return the accuracy and the report of a run, without its progress."""
    lines = [line.rpartition("\r")[2] for line in printed.splitlines()]
    accuracy = next(line for line in lines if line.endswith("are told right"))
    report = lines[next(n for n, line in enumerate(lines) if line.startswith("bestof: ")) :]
    return "\n".join([accuracy, *report]).replace(str(store), _SHOWN).replace(f"{ROOT}/", "")


def rewritten(page: str, reports: tuple[str, ...], commit: str, load: str) -> str:
    """Return the page with these reports in its first blocks, this commit and this load."""
    assert page.count("```\n") >= 2 * len(reports)
    left = iter(reports)
    block = re.compile(r"```\n.*?```\n", re.DOTALL)
    page = block.sub(lambda _: f"```\n{next(left)}\n```\n", page, count=len(reports))
    page = re.sub(r"at the\ncommit [0-9a-f]{8}", f"at the\ncommit {commit}", page)
    return re.sub(r"(?<=first run: )[\d.]+ on \d+ processors", load, page)


def main() -> int:
    reports = []
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    with TemporaryDirectory() as folder:
        store = Path(folder, "decisions.sqlite")
        for _ in range(2):
            done = subprocess.run(
                command(),
                cwd=ROOT,
                env={**os.environ, "BESTOF_STORE": str(store), "NO_COLOR": "1", "COLUMNS": "100"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            print(done.stdout, flush=True)
            if done.returncode:
                return done.returncode
            reports.append(report_of(done.stdout, store))
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rewritten(page, tuple(reports), commit.strip(), load), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
