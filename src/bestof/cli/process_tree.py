"""One summary for a process and those that it starts.

The first process names a folder to the others by the environment. Each of them writes there, at its
end, what it has to tell: its report, and what concerns the lock of the run. The first process ends
last, as a rule, and prints the sum. The first one that writes makes the folder.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time
from typing import Any

from bestof import selection
from bestof.cli.summary import summary_of
from bestof.errors import BestofError
from bestof.selection.identity.host import host
from bestof.selection.reports.merged import merged
from bestof.selection.reports.report import Report, Run, report_from_dict
from bestof.view import render
from bestof.whole_file import write_whole

FOLDER = "BESTOF_SUMMARY_FOLDER"
_NAME = "bestof-summary-"  # then the first process, and a text that nobody guesses
_KEPT = 86400.0  # seconds


class ProcessTree:
    """What the first process of a tree gathers of the others.

    reports: of the processes that have ended. take: is called with what else each of them told.
    """

    def __init__(self, take: Callable[[Any], None] = lambda _: None) -> None:
        self._take = take
        try:
            place = tempfile.gettempdir()
        except OSError:  # nothing can be written here, so no process tells anything
            place = os.sep
        _remove_left(place)
        self._folder = Path(place, f"{_NAME}{os.getpid()}-{secrets.token_hex(8)}")
        self.reports: list[Report] = []
        os.environ[FOLDER] = str(self._folder)

    def gather(self, *, last: bool = False) -> None:
        """Take what processes have told since the last time. The last time removes the folder."""
        for file in sorted(self._folder.glob("*.json")):
            with suppress(Exception):  # a damaged file: the others are told all the same
                told = json.loads(file.read_text(encoding="utf-8"))
                file.unlink()
                self.reports.append(report_from_dict(told["report"]))
                self._take(told["more"])
        if last:  # with what a process left that was killed as it wrote
            shutil.rmtree(self._folder, ignore_errors=True)

    def many(self) -> str:
        """Return the number of processes that had a choice, for a title; empty for a single one."""
        chose = [any(one.problems for one in report.selectors) for report in self.reports]
        others = sum(chose)  # and not the workers of a loader
        return f", {1 + others} processes" if others else ""


def tell_at_end(more: Callable[[], Any] = lambda: None) -> bool:
    """Tell this process to the first one of its tree, at its end. Return False if there is none.

    more: returns what else is told, as JSON can write it.
    """
    if not _has_first():
        return False
    atexit.register(_write, os.getpid(), more)
    return True


def join() -> None:
    """Have this process counted in the summary of its tree, or print that of a tree of its own."""
    if not tell_at_end():
        atexit.register(_print, ProcessTree(), os.getpid(), perf_counter())


def _has_first() -> bool:
    """Return whether another process waits for what this one tells."""
    return _is_first(Path(os.environ.get(FOLDER, "")))


def _is_first(folder: Path) -> bool:
    """Return whether the first process of a folder runs, and is not this one."""
    first = folder.name.removeprefix(_NAME).partition("-")[0]
    if not first.isdecimal() or int(first) == os.getpid():  # the first one, after `exec`
        return False
    try:
        os.kill(int(first), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):  # nobody has the number, or nobody can have it
        return False
    return True


def _remove_left(place: str) -> None:
    """Remove the folders of first processes that were killed, a day after they were written to."""
    for folder in Path(place).glob(f"{_NAME}*"):
        with suppress(OSError):
            # Its first process may run in another container, which has other numbers.
            if not _is_first(folder) and time() - folder.lstat().st_mtime > _KEPT:
                shutil.rmtree(folder, ignore_errors=True)


def _write(process: int, more: Callable[[], Any]) -> None:
    if os.getpid() != process or not _has_first():
        return  # a fork, which has its parent's handlers; or nobody would remove the file
    folder = os.environ[FOLDER]
    with suppress(OSError, BestofError):
        told = {"report": json.loads(render(selection.report_all(), "json")), "more": more()}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_whole(os.path.join(folder, f"{process}.json"), json.dumps(told))


def _print(tree: ProcessTree, process: int, began: float) -> None:
    if os.getpid() != process:
        return
    tree.gather(last=True)
    seconds = perf_counter() - began
    name = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    run = Run(f"{name}{tree.many()}", seconds, time() - seconds, host())
    report = merged([replace(selection.report_all(), run=run), *tree.reports])
    with suppress(OSError, ValueError, AttributeError, BestofError):
        lines, _ = summary_of(report)
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
