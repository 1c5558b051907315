"""`bestof doctor`: which known traps this machine and a program are in, and what each costs."""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from bestof.cli.options import add_json, add_number, parser_of_script, seconds, tell
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.cli.termination import interrupted_by_termination
from bestof.errors import BestofError
from bestof.progress import under_way
from bestof.view.findings import print_findings
from bestof.view.printable import printable
from bestof.view.quantity import plural

_EPILOG = """\
The script runs until the examination ends, within a minute, and is then ended
between two steps. What it writes to files, this run writes; what it prints is
not shown. Cures that can be tried on a running program are tried in turn with
what stood before, on the script's own steps. Without a script, a small training
stands in, and traps of programs are left out.

  bestof doctor
  bestof doctor train.py --epochs 1"""

_VALUED = ("--seconds",)
_TAIL = 12
"""So many lines of the output of a failed program are shown."""
_LOOK = 0.1
"""How often the process is asked whether it has ended, in seconds."""
_LATE = 20.0
"""A process that is so late does not answer any more."""


def call(argv: Sequence[str]) -> int:
    """Parse the arguments, examine, and print the findings. Return 0, whatever was found.

    Raises BestofError if the program has failed, or was not examined; with `--json`, the report
    says so, and 1 is returned.
    """
    own, module, rest = split_arguments(argv, _VALUED)
    options = make_parser().parse_args(own)
    if rest:
        (find_module if module else find_script)(rest[0], rest[1:])  # refuse an unusable one here
    words = ["-m", *rest] if module else rest
    if not options.json:
        subject = shlex.join(words) if words else "a small training on this machine"
        tell(f"examining {subject} for up to {options.seconds + _LATE:.0f} s")
    with under_way("examines"):
        report = _examined(words, options.seconds)
    if options.json:
        print(json.dumps(report, indent=2))
        return int(report["error"] is not None)
    if report["findings"]:
        print_findings(report["findings"])
    if report["error"] is not None:
        error, *output = report["error"].split("\n")
        for line in output:
            tell(printable(line))
        raise BestofError(error)
    if words and not report["steps"]:
        tell(
            f"no step ended within {options.seconds:g} s, so no cure was tried on the program. A "
            "step is an optimizer's, or a call of a model without gradients. If its steps are "
            "slow, give them more time: --seconds 300"
        )
    elif any(one["caught"] is None for one in report["findings"]):
        tell("a ? stands where nothing was judged; a higher --seconds gives more steps")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of_script(
        "doctor",
        "Find the traps that this machine and a PyTorch program are in.",
        _EPILOG,
        or_else="[options]",
    )
    add_number(parser, "--seconds", 35.0, "try cures for S seconds", seconds)
    add_json(parser, "the findings as JSON")
    return parser


def _examined(words: Sequence[str], limit: float) -> dict[str, Any]:
    """Run the program, and return its report.

    `error` is None, or one line that says why the program was not examined to its end, and lines of
    its output.
    """
    reports, report = os.pipe()
    with tempfile.TemporaryFile() as output, interrupted_by_termination():
        own = [str(os.getpid()), str(report), str(limit)]
        process = subprocess.Popen(
            [sys.executable, "-m", "bestof.cli.doctor_trial", *own, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(report,),
            start_new_session=True,
            env=os.environ | {"BESTOF": "off", "BESTOF_STORE": "off"},
        )
        os.close(report)
        try:
            text = _read(reports, process, monotonic() + limit + _LATE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of its loaders
            process.wait()
            os.close(reports)
        output.seek(0)
        lines = output.read().decode(errors="replace").rstrip().split("\n")
    found: dict[str, Any] = json.loads(text) if text else {"findings": [], "steps": 0}
    error = None
    if not text:
        error = "ended, or hung, before the examination"
    elif found.pop("failed"):
        error = f"failed after {plural(found['steps'], 'step')}"
    elif not found["imported"]:
        error = "never imported torch"
    found.pop("imported", None)
    if error is not None:
        name = shlex.join(words) or "the small training"
        error = "\n".join([f"{name} {error}", *lines[-_TAIL:]]).rstrip()
    return found | {"error": error}


def _read(descriptor: int, process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return the last line that is written; nothing if the process ends, or the time is up, before.

    The end of the pipe tells less: a child of the process may keep the pipe open.
    """
    found = b""
    while monotonic() < deadline:
        ended = process.poll() is not None
        if select.select([descriptor], [], [], 0.0 if ended else _LOOK)[0]:
            part = os.read(descriptor, 1 << 16)
            if not part:
                break
            found += part
        elif ended:
            break
    lines, _, _ = found.rpartition(b"\n")  # behind it, a line may have been cut off
    return lines.rpartition(b"\n")[2]
