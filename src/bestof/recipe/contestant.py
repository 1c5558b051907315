"""A process that runs the script with some settings, and waits between turns."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from bestof.errors import BestofError
from bestof.recipe.parts import Facts

TURN_SECONDS = 0.5
MOST_BARREN = 2
"""A script that ends so often without a turn has too few steps."""


SettingsT = TypeVar("SettingsT")


class ScriptFailed(BestofError):
    """The script failed, or has no steps that can be timed."""


class OutOfTime(BestofError):
    """The time of the search is up."""


class Contestant(Generic[SettingsT]):
    """Runs the script. `turn` continues it for some steps; it waits otherwise.

    command: makes the command line from the settings and two file descriptors, for orders and
    reports. A script that ends is started again. Its output goes to a temporary file.
    """

    def __init__(
        self, settings: SettingsT, command: Callable[[SettingsT, int, int], list[str]]
    ) -> None:
        self.settings = settings
        self.facts: Facts | None = None
        self.trials = 0
        self.report: dict[str, Any] = {}  # the last one
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        # Processes that are started again use it too; it has no name, and ends with this object.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - see above
        self._orders = self._reports = -1
        self._text = b""

    def turn(self, deadline: float) -> float:
        """Let the script run for a turn. Return the seconds of a step.

        deadline: in seconds of `monotonic`. Raises ScriptFailed, or OutOfTime.
        """
        for _ in range(MOST_BARREN):
            if self._process is None:
                self._start()
                if self._report(deadline) is None:
                    continue
            with suppress(BrokenPipeError):  # it has ended; the report tells how
                os.write(self._orders, f"{TURN_SECONDS}\n".encode())
            found = self._report(deadline)
            if found is not None:
                return float(found["seconds"])
        raise ScriptFailed(
            "it has too few steps: at least 5 steps of an optimizer, or calls of a model without "
            "gradients, are needed"
        )

    def close(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            started = descendants(process.pid)  # a launcher's ranks have groups of their own
            os.killpg(process.pid, signal.SIGKILL)  # the group of this process alone
            for one in started:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        process.wait()
        os.close(self._orders)
        os.close(self._reports)

    def _start(self) -> None:
        self._output.seek(0)
        self._output.truncate()
        self._text = b""
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        try:
            self._process = subprocess.Popen(
                self._command(self.settings, orders, reports),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(orders, reports),
                start_new_session=True,
            )
        finally:
            os.close(orders)
            os.close(reports)

    def _report(self, deadline: float) -> dict[str, Any] | None:
        """Return the next report, or None if the script ended well before it."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._reports], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                self.close()
                raise OutOfTime("the time is up")
            more = os.read(self._reports, 65536)
            if not more:
                self._ended()
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        self.report = found
        self.facts, self.trials = Facts(**found["facts"]), found["trials"]
        return found

    def _ended(self) -> None:
        assert self._process is not None
        status = self._process.wait()
        self.close()
        if status:
            self._output.seek(0)
            last = last_words(self._output.read().decode(errors="replace"))
            raise ScriptFailed(f"it failed with status {status}: {last}")


_LAUNCHER = re.compile(
    r"^[EW]\d{4} .*torch/distributed/elastic/.*(?:failed \(exitcode|closing signal)", re.MULTILINE
)


def last_words(output: str) -> str:
    """Return the script's last lines. PyTorch's launcher writes pages behind them."""
    launcher = _LAUNCHER.search(output)
    if launcher is not None and output[: launcher.start()].strip():
        output = output[: launcher.start()]
    return " | ".join(output.strip().splitlines()[-5:])


def descendants(process: int) -> list[int]:
    """Return the processes that `process` started, those that they started, and so on.

    The list is empty on systems without /proc.
    """
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # The name in parentheses may contain anything; the state and the parent follow it.
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found, at = [process], 0
    while at < len(found):
        found += children.get(found[at], ())
        at += 1
    return found[1:]
