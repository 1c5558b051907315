"""Captures a part of a program: lines of oneDNN and MKL, and operations of PyTorch."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig

import bestof.torch
from bestof.errors import ProfileError
from bestof.escaped import escaped
from bestof.processors import processors
from bestof.profile.log import contains_line, read_lines
from bestof.profile.profile import Profile
from bestof.profile.recording.c_output import COutput
from bestof.profile.recording.foreign_profiler import ForeignProfiler
from bestof.profile.recording.module_names import ModuleNames
from bestof.profile.recording.plan_steps import watch_plan_steps
from bestof.profile.recording.selectors import Selectors
from bestof.profile.recording.thread_clocks import ThreadClocks
from bestof.profile.stopwatch import Watch
from bestof.profile.timeline.operation import operations_of
from bestof.profile.timeline.own_lines import decisions_of
from bestof.profile.timeline.timeline import merge

_STAMP = "ONEDNN_VERBOSE_TIMESTAMP"
_VERBOSE = "ONEDNN_VERBOSE"
_DISPATCH = "dispatch,profile_exec"

_LOST = (
    "the program ran PyTorch's profiler, which ended the recording of operations; switch it off in "
    "the program, or record other steps (--skip, --steps)"
)

_INTERRUPTED = (
    "the program started PyTorch's profiler, of which there is one in a process: the recording "
    "ends there; record other steps (--skip, --steps), or switch that profiler off"
)

_CLOSED = (
    "the program closed the file that takes the lines of oneDNN and MKL, by closing C's stdout or "
    "all descriptors; lines after that are lost"
)

# Above this share of the processors, other processes have disturbed the recording.
_OTHERS = 0.1

# Only one capture at a time: verbose levels, hooks and the profiler belong to the process.
_running = threading.Lock()


class Recorder:
    """A capture between `start` and `stop`. As a context manager, it sets `profile` at the end.

    If the captured code raises, what was captured is kept. A second capture inside of one raises
    ProfileError, and so does a capture inside of `torch.profiler.profile`. `dispatch` also records
    why oneDNN refused implementations. It works only if oneDNN has not run before in the process.
    """

    def __init__(self, title: str = "region", dispatch: bool = False) -> None:
        self._title = escaped(title)  # a path may hold anything
        self._dispatch = dispatch
        self._texts: list[str] = []
        self._output = COutput(self._take)
        self._clocks = ThreadClocks()
        self._names = ModuleNames(self._clocks)
        self._foreign = ForeignProfiler(self._interrupt)
        self._selectors = Selectors()
        self._profiler: torch.profiler.profile | None = None
        self._watch = Watch()
        self._began = 0
        self._forwards = False
        self._environment: str | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._stop_draining = threading.Event()
        self._profile: Profile | None = None
        # Another thread may start PyTorch's profiler while this one ends the capture.
        self._ending = threading.Lock()

    @property
    def profile(self) -> Profile:
        """The profile. Raises ProfileError before the end of the capture."""
        if self._profile is None:
            raise ProfileError("the capture has not ended; read `profile` after the `with` block")
        return self._profile

    def start(self) -> None:
        if not _running.acquire(blocking=False):
            raise ProfileError("a capture is already running in this process; end it first")
        try:
            if torch._C._autograd._profiler_enabled():
                raise ProfileError(
                    "PyTorch's profiler is already running; capture outside of "
                    "torch.profiler.profile"
                )
            self._output.start()
        except BaseException:
            _running.release()
            raise
        # oneDNN reads this when it prints its first line. If the user asked for lines, these still
        # appear.
        self._forwards = _level() > 0
        os.environ.setdefault(_STAMP, "1")
        # Kineto would report its own start and end.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        threading.Thread(target=self._drain, name="bestof-capture", daemon=True).start()
        self._names.start()
        self._selectors.start()
        self._unwatch = watch_plan_steps()
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=True,
            # Without this, operations of threads that the program starts itself are lost.
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        if self._dispatch:
            # oneDNN has no function for this. It reads the variable when it first runs.
            self._environment, os.environ[_VERBOSE] = os.environ.get(_VERBOSE), _DISPATCH
        _set_verbose(1, onednn=not self._dispatch and not _asks_for_executions())
        self._profiler.start()
        self._foreign.start()
        self._watch = Watch()
        self._began = time.time_ns()
        self._clocks.start()

    def stop(self) -> Profile:
        """End the capture and return its profile, also if the program's own profiler ended it."""
        self._end_here()
        if self._profile is None:
            raise ProfileError("the capture was not started")
        return self._profile

    def _end_here(self) -> None:
        """End the capture; if another thread is doing so, wait for it."""
        with self._ending:
            self._end(())

    def _interrupt(self) -> None:
        with self._ending:
            self._end((_INTERRUPTED,))

    def _end(self, notes: tuple[str, ...]) -> None:
        """End the capture, unless it has ended. `notes` come first in the profile."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        ended = time.time_ns()
        others = self._watch.read(1).others
        self._foreign.stop()
        self._clocks.stop()
        self._names.stop()
        self._unwatch()
        self._selectors.stop()
        profiler.stop()
        if self._dispatch:
            os.environ.pop(_VERBOSE, None)
            if self._environment is not None:
                os.environ[_VERBOSE] = self._environment
        _set_verbose(_level(), onednn=True)
        self._stop_draining.set()
        self._output.stop()
        _running.release()
        results = profiler.profiler
        assert results is not None
        assert results.kineto_results is not None
        operations = operations_of(results.kineto_results.events())
        # A complete recording contains the range of the first reading of the clocks.
        ended_by_program = not operations
        profile = merge(
            self._title,
            read_lines(self._texts),
            operations,
            self._names.samples,
            self._began,
            ended,
            _host(),
            decisions_of(bestof.torch.summary),
            self._clocks.readings_of,
        )
        marks = self._selectors.marks(operations, self._began)
        told = [_LOST] * ended_by_program + [_CLOSED] * self._output.closed
        told = [*notes, *told, *profile.notes, *_disturbed(others)]
        self._profile = replace(profile, marks=tuple(marks), notes=tuple(told))

    def enter(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        """Note a module whose call began before `start`."""
        self._names.enter(module, arguments)

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._end_here()

    def _take(self, text: str) -> bool:
        # Parsing a line takes 30 us, so it waits until the end of the capture.
        if not contains_line(text):
            return False
        self._texts.append(text)
        return not self._forwards

    def _drain(self) -> None:
        """Pass on the program's own output while it runs, so that the file in memory stays
        small."""
        while not self._stop_draining.wait(0.02):
            self._output.drain()


def _disturbed(others: float) -> list[str]:
    """Return a note if other processes took this much of the processors, as a share."""
    if others <= _OTHERS:
        return []
    return [
        f"other processes, workers of a DataLoader among them, took {others:.0%} of the "
        "processors: without them, steps may be shorter and their shares different"
    ]


def _level() -> int:
    """Return the level of oneDNN's lines that the environment asks for."""
    for name in ("ONEDNN_VERBOSE", "DNNL_VERBOSE"):
        text = os.environ.get(name, "")
        if text:
            return min(int(text), 2) if text.isdecimal() else int(text not in ("none", "0"))
    return 0


def _asks_for_executions() -> bool:
    """Return whether the environment names categories of lines that include executions.

    A level would replace these categories.
    """
    return any(word in os.environ.get(_VERBOSE, "") for word in ("all", "profile"))


def _set_verbose(level: int, onednn: bool) -> None:
    verbose: Callable[[int], int] | None
    for name in ("mkldnn_set_verbose", "mkl_set_verbose"):
        verbose = getattr(torch._C._verbose, name, None)
        if verbose is not None and (onednn or name == "mkl_set_verbose"):
            # MKL has no second level.
            verbose(level if name.startswith("mkldnn") else min(level, 1))


def _host() -> dict[str, str]:
    return {
        "processor": processor_name(),
        "threads": str(torch.get_num_threads()),
        "processors": str(processors().usable),
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
    }


def processor_name() -> str:
    """Return the name of the processor, as /proc/cpuinfo gives it if it can be read."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for text in file:
                if text.startswith("model name"):
                    return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
