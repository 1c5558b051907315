"""`bestof doctor`: which known traps this machine and a program are in, and what each costs."""

from __future__ import annotations

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
from bestof.view.findings import print_findings

_EPILOG = """\
The script runs until the examination ends, within a minute, and is then ended
between two steps. What it writes to files, this run writes; what it prints is
not shown. Cures that can be tried on a running program are tried in turn with
what stood before, on the script's own steps. Without a script, a small training
stands in, and traps of programs are left out.

  bestof doctor
  bestof doctor train.py --epochs 1"""

_VALUED = ("--seconds",)
_LATE = 20.0
"""A process that is so late does not answer any more."""


def call(argv: Sequence[str]) -> int:
    """Parse the arguments, examine, and print the findings. Return 0, whatever was found."""
    own, module, rest = split_arguments(argv, _VALUED)
    parser = parser_of_script(
        "doctor",
        "Find the traps that this machine and a PyTorch program are in.",
        _EPILOG,
        or_else="[options]",
    )
    add_number(parser, "--seconds", 35.0, "try cures for S seconds", seconds)
    add_json(parser, "the findings as JSON")
    options = parser.parse_args(own)
    if rest:
        (find_module if module else find_script)(rest[0], rest[1:])  # refuse an unusable one here
    words = ["-m", *rest] if module else rest
    if not options.json:
        subject = shlex.join(words) if words else "a small training on this machine"
        tell(f"examining {subject} for up to {options.seconds + _LATE:.0f} s")
    report = _examined(words, options.seconds)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_findings(report["findings"])
        if words and not report["steps"]:
            tell(
                "no step was seen: an optimizer's step, or a call of a model without gradients; so "
                "no cure was tried on the program"
            )
    return 0


def _examined(words: Sequence[str], limit: float) -> dict[str, Any]:
    """Run the program, and return its report. Raises BestofError if there is none."""
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
            text = _read(reports, monotonic() + limit + _LATE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of its loaders
            process.wait()
            os.close(reports)
        if text:
            return dict(json.loads(text))
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    name = shlex.join(words) or "the small training"
    raise BestofError(f"{name} ended, or hung, before the examination; its last line: {last}")


def _read(descriptor: int, deadline: float) -> bytes:
    """Return what is written until the other end is closed or the time is up."""
    found = b""
    while select.select([descriptor], [], [], max(0.0, deadline - monotonic()))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return found
        found += part
    return b""
