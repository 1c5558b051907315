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
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from bestof.errors import BestofError
from bestof.recipe.parts import Facts

TURN_SECONDS = 0.5
MOST_BARREN = 2
"""A script that ends so often without a turn has too few steps."""

MOST_IDLE_SECONDS = 1.0
LOOK_SECONDS = 0.01

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
        self.chosen: list[str] = []  # the operations for which bestof chooses
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
                assert self._process is not None
                wait_until_idle(descendants(self._process.pid))
                return float(found["seconds"])
        raise ScriptFailed(
            "it has too few steps: at least 5 steps of an optimizer, or calls of a model without "
            "gradients, are needed, and one more for each batch that workers fetch ahead"
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
        self.facts = Facts(**found["facts"])
        self.trials, self.chosen = found["trials"], found["chosen"]
        return found

    def _ended(self) -> None:
        assert self._process is not None
        status = self._process.wait()
        self.close()
        if status:
            self._output.seek(0)
            last = last_words(self._output.read().decode(errors="replace"))
            raise ScriptFailed(f"it failed with status {status}: {last}")


def wait_until_idle(processes: list[int]) -> None:
    """Wait until processes use no processor, for MOST_IDLE_SECONDS at most.

    The workers of a loader still fetch some batches after a turn. They would take the time of the
    next contestant's turn. Only the first thread of each process is looked at.
    """
    until = monotonic() + MOST_IDLE_SECONDS
    before = _processor_use(processes)[1]
    while processes and monotonic() < until:
        sleep(LOOK_SECONDS)
        runs, now = _processor_use(processes)
        if not runs and now - before < LOOK_SECONDS / 10:
            return
        before = now


def _processor_use(processes: list[int]) -> tuple[bool, float]:
    """Return whether one of them runs or could run, and the seconds that all have run."""
    runs, nanoseconds = False, 0
    for process in processes:
        with suppress(OSError):  # it has ended, or the kernel does not count
            runs |= _fields(process)[0] in (b"R", b"D")
            nanoseconds += int(Path(f"/proc/{process}/schedstat").read_bytes().split()[0])
    return runs, nanoseconds / 1e9


def _fields(process: int) -> list[bytes]:
    """Return the state of a process, the number of its parent, and what else /proc tells."""
    # The name in parentheses may contain anything.
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()


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
            parent = int(_fields(int(folder.name))[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, at = [process], 0
    while at < len(found):
        found += children.get(found[at], ())
        at += 1
    return found[1:]
