"""Runs a program for `bestof doctor`: `-m bestof.cli.doctor_trial PARENT REPORT SECONDS ...`.

The rest is the script with its arguments, or nothing: then a small training stands in. PARENT is
the process of `bestof doctor`. The findings are written to the file descriptor REPORT as JSON. The
process ends after the examination, between two steps, or after SECONDS.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from bestof.cli.after_import import after_import
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.worker.end_with import end_with

if TYPE_CHECKING:
    from bestof.doctor.finding import Finding

_GRACE = 2.0
"""After SECONDS, a turn may take so long to end; then the examination is cut off."""


class _Report:
    """What the parent reads: lines of JSON, of which the last one counts. Only this process writes
    them.
    """

    def __init__(self, descriptor: int) -> None:
        # Children must not keep the pipe open: neither programs that are started, nor forks.
        os.set_inheritable(descriptor, False)
        self._descriptor, self._process = descriptor, os.getpid()
        self._identity = os.fstat(descriptor)
        os.register_at_fork(after_in_child=self._close)
        self.failed = False
        self.lock = threading.RLock()

    @property
    def ours(self) -> bool:
        """Whether this process is not a fork of the one that is examined."""
        return os.getpid() == self._process

    def _close(self) -> None:
        """Close the descriptor. In a fork of a fork, a file may have its number, and stays."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._identity):
                os.close(self._descriptor)

    def write(self, findings: Sequence[Finding], steps: int, imported: bool) -> None:
        """Write the report, which a later one may replace."""
        facts = {"steps": steps, "failed": self.failed, "imported": imported}
        with suppress(OSError, ValueError):  # the program may have closed them
            sys.stdout.flush()
            sys.stderr.flush()
        text = json.dumps({"findings": [asdict(one) for one in findings], **facts})
        with os.fdopen(self._descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(f"{text}\n")

    def end(self, findings: Sequence[Finding], steps: int, imported: bool) -> NoReturn:
        """Write the report, and end the process."""
        self.write(findings, steps, imported)
        os._exit(0)  # the program need not run to its end


def main(argv: Sequence[str]) -> int:
    """Run the program that the arguments name."""
    if not end_with(int(argv[0])):
        return 1
    report, seconds, words = _Report(int(argv[1])), float(argv[2]), argv[3:]
    begin = partial(_begin, report, monotonic() + seconds, bool(words))
    if not words:
        begin()
        from bestof.doctor.stand_in import main as stand_in  # noqa: PLC0415 - imports torch

        stand_in()

    def without_torch() -> None:
        if report.ours:
            report.end([], 0, False)

    atexit.register(without_torch)  # never called if `_begin` has been
    _, module, rest = split_arguments(words, ())
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    try:
        return script.run(partial(after_import, "torch", begin))
    except SystemExit as exit_:
        report.failed = exit_.code not in (None, 0)
        raise
    except BaseException:
        report.failed = True
        raise


def _begin(report: _Report, deadline: float, of_program: bool) -> None:
    import torch  # noqa: PLC0415 - the program has imported it

    from bestof.doctor.examination import Examination  # noqa: PLC0415 - as above
    from bestof.doctor.seen import Seen  # noqa: PLC0415 - as above
    from bestof.doctor.table import traps  # noqa: PLC0415 - as above
    from bestof.doctor.watch import Watch  # noqa: PLC0415 - as above
    from bestof.processors import room_for_threads  # noqa: PLC0415 - as above
    from bestof.recipe.step_clock import StepClock  # noqa: PLC0415 - as above

    def done(findings: Sequence[Finding]) -> None:
        report.end(findings, clock.steps, True)

    def pause(step: float | None) -> float:
        with report.lock:  # not while the timer collects the findings
            return examination.pause(step)

    def give_up() -> None:
        if not report.ours:  # a fork that ends
            return
        with report.lock:
            steps = clock.steps  # more may end meanwhile, of which the findings do not know
            useless = report.failed and not steps
            report.end([] if useless else examination.findings(), steps, True)

    seen = Seen(torch.get_num_threads(), room_for_threads())
    examination = Examination(
        traps(of_program),
        seen,
        done,
        deadline=deadline,
        steps=lambda: clock.steps,
        early=lambda findings: report.write(findings, clock.steps, True),
    )
    clock = StepClock(pause, least_steps=1)  # calls `pause` in this process only
    Watch(seen).start()
    clock.start()
    atexit.register(give_up)  # a program with few steps
    timer = threading.Timer(max(0.0, deadline - monotonic()) + _GRACE, give_up)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
