"""One summary for a process and those that it starts, where `BESTOF=on` tunes all of them.

The first process makes a folder, and tells it to the others by the environment. Each of them writes
its report there when it ends. The first process ends last, as a rule, and prints the sum.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time

from bestof import selection
from bestof.cli.summary import summary_of
from bestof.errors import BestofError
from bestof.selection.identity.host import host
from bestof.selection.reports.merged import merged
from bestof.selection.reports.report import Report, Run, report_from_dict
from bestof.view import render
from bestof.whole_file import write_whole

FOLDER = "BESTOF_SUMMARY_FOLDER"


def join() -> None:
    """Have this process counted in the summary of its tree, or print that of a tree of its own."""
    folder = os.environ.get(FOLDER, "")
    if os.path.isdir(folder):
        atexit.register(_write, Path(folder), os.getpid())
        return
    made = Path(tempfile.mkdtemp(prefix="bestof-summary-"))
    os.environ[FOLDER] = str(made)
    atexit.register(_print, made, os.getpid(), perf_counter())


def _write(folder: Path, process: int) -> None:
    if os.getpid() != process:
        return  # a fork, which has its parent's handlers
    report = selection.report_all()
    if report.selectors:
        with suppress(OSError):  # the first process has ended
            write_whole(str(folder / f"{process}.json"), render(report, "json"))


def _print(folder: Path, process: int, began: float) -> None:
    if os.getpid() != process:
        return
    others = list(_reports(folder))
    shutil.rmtree(folder, ignore_errors=True)
    seconds = perf_counter() - began
    name = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    many = f", {1 + len(others)} processes" if others else ""
    run = Run(f"{name}{many}", seconds, time() - seconds, host())
    report = merged([replace(selection.report_all(), run=run), *others])
    with suppress(OSError, ValueError, AttributeError, BestofError):
        lines, _ = summary_of(report)
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()


def _reports(folder: Path) -> list[Report]:
    found = []
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, BestofError):
            found.append(report_from_dict(json.loads(file.read_text(encoding="utf-8"))))
    return found
