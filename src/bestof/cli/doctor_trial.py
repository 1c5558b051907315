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
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from bestof.cli.after_import import after_import
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.recipe.end_with import end_with

if TYPE_CHECKING:
    from bestof.doctor.finding import Finding

_GRACE = 2.0
"""After SECONDS, a turn may take so long to end; then the examination is cut off."""


def main(argv: Sequence[str]) -> int:
    """Run the program that the arguments name."""
    if not end_with(int(argv[0])):
        return 1
    report, seconds, words = int(argv[1]), float(argv[2]), argv[3:]
    begin = partial(_begin, report, monotonic() + seconds, bool(words))
    if not words:
        begin()
        from bestof.doctor.stand_in import main as stand_in  # noqa: PLC0415 - imports torch

        stand_in()
    _, module, rest = split_arguments(words, ())
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    return script.run(partial(after_import, "torch", begin))


def _begin(report: int, deadline: float, of_program: bool) -> None:
    import torch  # noqa: PLC0415 - the program has imported it

    from bestof.doctor.examination import Examination  # noqa: PLC0415 - as above
    from bestof.doctor.seen import Seen  # noqa: PLC0415 - as above
    from bestof.doctor.table import traps  # noqa: PLC0415 - as above
    from bestof.doctor.watch import Watch  # noqa: PLC0415 - as above
    from bestof.processors import room_for_threads  # noqa: PLC0415 - as above
    from bestof.recipe.step_clock import StepClock  # noqa: PLC0415 - as above

    process, writing = os.getpid(), threading.Lock()

    def done(findings: list[Finding]) -> None:
        if not writing.acquire(blocking=False) or os.getpid() != process:
            return
        with os.fdopen(report, "w", encoding="utf-8") as file:
            json.dump({"findings": [asdict(one) for one in findings], "steps": clock.steps}, file)
        os._exit(0)  # the program need not run to its end

    def give_up() -> None:
        done(examination.findings())

    seen = Seen(torch.get_num_threads(), room_for_threads())
    examination = Examination(traps(of_program), seen, done, deadline=deadline)
    clock = StepClock(examination.pause, least_steps=1)
    Watch(seen).start()
    clock.start()
    atexit.register(give_up)  # a program with few steps
    timer = threading.Timer(max(0.0, deadline - monotonic()) + _GRACE, give_up)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
