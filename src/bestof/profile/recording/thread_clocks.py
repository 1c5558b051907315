"""Reads the wall clock and the processor clock of threads, between the modules of a program.

Between two readings, a thread waited for as long as its processor clock stood still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bestof.profile.recording.named_range import new_range
from bestof.profile.timeline.attribution import NO_MODULE, Module
from bestof.profile.timeline.between import Reading
from bestof.profile.timeline.operation import STEP_END, THREAD, Operation
from bestof.torch.process.step_ends import StepEnds


class ThreadClocks:
    """The readings of a capture. Modules read at their hooks, and optimizers here."""

    def __init__(self) -> None:
        self._readings: dict[int, list[Reading]] = {}
        self._handles: list[Any] = []
        self._ends = StepEnds()

    def start(self) -> None:
        """Read at the beginning and the end of each optimizer's step, and now."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        self.read()

    def stop(self) -> None:
        """Read for the last time."""
        self.read()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def read(self, module: Module = NO_MODULE) -> None:
        """Read the clocks of this thread, before `module` runs on. This takes 1 us."""
        thread = threading.get_ident()
        own = self._readings.get(thread)
        if own is None:
            own = self._readings[thread] = []
            # PyTorch's profiler numbers the threads itself. The range tells which number this is.
            with new_range(f"{THREAD}{thread}"):
                pass
        own.append(Reading(time.time_ns(), time.thread_time_ns(), module))

    def readings_of(self, thread: int, operations: Sequence[Operation]) -> Sequence[Reading]:
        """Return the readings of a thread by the profiler's number. None if it has no range."""
        names = [one.name for one in operations if one.thread == thread]
        found = [name for name in names if name.startswith(THREAD)]
        return self._readings.get(int(found[0][len(THREAD) :]), ()) if found else ()

    def _before_optimizer(self, optimizer: object, _arguments: object, _keywords: object) -> None:
        if self._ends.ends_step(optimizer):
            with new_range(STEP_END):
                pass
        self.read()

    def _after_optimizer(self, _optimizer: object, _arguments: object, _keywords: object) -> None:
        self.read()
