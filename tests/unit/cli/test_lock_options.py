"""The lock of several processes records what their common summary shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from bestof import BestOf, selection
from bestof.cli.lock_options import LockOptions
from bestof.selection.reports.merged import merged
from bestof.selection.reports.report import Report
from bestof.selection.state import registry
from bestof.selection.state.lock_writer import LockWriter
from bestof.selection.store.lock_file import import_records


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a program of one process, and return its options and its report."""

    def run(path: Path, best: str, calls: int) -> tuple[LockOptions, Report]:
        now = [0.0]

        def taking(name: str) -> Any:
            def called(_problem: int) -> None:
                now[0] += 1.0 if name == best else 3.0

            return name, called

        writer = LockWriter()
        monkeypatch.setattr(LockWriter, "active", [writer])
        monkeypatch.setattr(registry, "_selectors", WeakSet())
        alternatives = [taking("a"), taking("b")]
        toy = BestOf("toy", alternatives, lambda n: n, clock=lambda: now[0], budget=None)
        for _ in range(calls):
            toy(1)
        return LockOptions(None, False, writer, str(path)), selection.report_all()

    return run


@pytest.mark.parametrize("calls", [(60, 400), (400, 60)])
@pytest.mark.parametrize("own", [True, False])
def test_the_lock_records_what_the_summary_shows(
    process: Any, tmp_path: Path, calls: tuple[int, int], own: bool
) -> None:
    """Two processes decide differently; the first one of the tree may be a third or one of them."""
    first, first_report = process(tmp_path / "lock", "a", calls[0] if own else 0)
    children = [] if own else [process(tmp_path / "lock", "a", calls[0])]
    children.append(process(tmp_path / "lock", "b", calls[1]))
    for options, _ in children:
        first.take(json.loads(json.dumps(options.told())))
    report = merged([first_report, *(report for _, report in children)])
    (line,) = first.lines(None, report)
    assert line.startswith("1 problem in the lock")
    (shown,) = [problem.decision for one in report.selectors for problem in one.problems]
    (record,) = import_records((tmp_path / "lock").read_text())
    assert shown == record.decision == ("a" if calls[0] > calls[1] else "b")
