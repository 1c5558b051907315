"""`bestof run --locked`, `--strict` and `--write-lock`: runs that take recorded decisions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bestof import selection
from bestof.cli.options import check_writable
from bestof.entries import entries
from bestof.errors import BestofError, InvalidArgument
from bestof.selection.policies.policy import always
from bestof.selection.reports.report import Report
from bestof.selection.state.lock import Lock, current_lock
from bestof.selection.state.lock_writer import LockWriter
from bestof.selection.store.lock_file import import_records
from bestof.selection.store.protocol import Store
from bestof.view.printable import printable
from bestof.view.quantity import plural
from bestof.whole_file import write_whole

NOT_RECORDED = 3
"""The exit status of `--strict` if a problem was not in the lock."""

_LISTED = 12  # problems of the summary


def add_lock_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `bestof run`."""
    parser.add_argument(
        "--locked", metavar="FILE", help="take the decisions in FILE, and measure and keep nothing"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help=f"with --locked: end with status {NOT_RECORDED} if a problem is not in the lock",
    )
    parser.add_argument(
        "--write-lock", metavar="FILE", help="write the decisions at the end, for --locked"
    )


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The checked options. `writer` and `path` are None unless a lock is to be written."""

    lock: Lock | None
    strict: bool
    writer: LockWriter | None
    path: str | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> LockOptions:
        """Read the lock, or begin to collect decisions for one.

        Raises InvalidArgument for options that exclude each other, and what `read_lock` raises.
        """
        if options.locked is not None:
            selection.use_lock(options.locked)
        lock, path = current_lock(), options.write_lock
        if lock is None:
            if options.strict:
                raise InvalidArgument("--strict: needs a lock; pass --locked FILE too")
        elif path is not None:
            raise InvalidArgument(
                "--write-lock writes what a run measures, and a locked run measures nothing; pass "
                "one of the two"
            )
        elif options.store is not None:
            raise InvalidArgument("--store: a locked run opens no store; leave it out")
        elif options.policy is not None and always(selection.parse_policy(options.policy)) is None:
            raise InvalidArgument(
                f"--policy {options.policy} searches, and a locked run does not; leave it out"
            )
        if path is None:
            return cls(lock, options.strict, None, None)
        check_writable(path, "a lock")
        writer = LockWriter()
        LockWriter.active.append(writer)
        return cls(lock, options.strict, writer, os.path.abspath(path))

    def status_of(self, run: Callable[[], int]) -> int:
        """Run the program. Return its status, or NOT_RECORDED if a problem was not in the lock.

        An error, or another status, of the program passes through.
        """
        ending: SystemExit | None = None
        try:
            status = run()
        except SystemExit as error:
            status, ending = (1 if error.code else 0), error
        if status == 0 and self.lock is not None and self.lock.missing:
            return NOT_RECORDED
        if ending is not None:
            raise ending
        return status

    def told(self) -> dict[str, Any]:
        """Return what the summary of another process needs of this one, as JSON can write it."""
        missing = [] if self.lock is None else entries(self.lock.missing)
        told: dict[str, Any] = {"missing": [[*problem, why] for problem, why in missing]}
        if self.writer is not None:
            told["written"] = self.writer.text()
            told["left out"] = self.writer.left_out_problems()
        return told

    def take(self, told: dict[str, Any]) -> None:
        """Add what another process has told: decisions, and problems that were not in the lock."""
        if self.lock is not None:
            for selector, problem, why in told["missing"]:
                self.lock.missing.setdefault((selector, problem), why)
        if self.writer is not None:
            self.writer.unite(import_records(told["written"]), told["left out"])

    def lines(self, store: Store | None, report: Report) -> list[str]:
        """Write the lock, if one is to be written. Return the lines for the end of the summary.

        report: of all processes. If they have decided a problem differently, the lock records the
            decision of the report.
        """
        if self.lock is not None:
            missing = self.lock.missing_lines()
            told = f"not in the lock: {plural(len(missing), 'problem')} took the first alternative"
            return _listed(told, missing) if missing else ["every problem was in the lock"]
        if self.writer is None or self.path is None:
            return []
        self.writer.follow(
            {
                (one.selector, problem.problem): problem.decision
                for one in report.selectors
                for problem in one.problems
            }
        )
        left_out = self.writer.left_out
        try:
            pins = [] if store is None else store.pins()
            write_whole(self.path, self.writer.text(pins))
        except (BestofError, OSError) as error:
            return [f"the lock was not written to {self.path}: {error}"]
        told = f"{plural(self.writer.count, 'problem')} in the lock {self.path}"
        if not left_out:
            return [told]
        return _listed(f"{told}; {len(left_out)} left out", left_out)


def _listed(title: str, problems: list[str]) -> list[str]:
    lines = [title, *(f"  {printable(one)}" for one in problems[:_LISTED])]
    more = len(problems) - _LISTED
    return [*lines, f"  and {more:,} more"] if more > 0 else lines
