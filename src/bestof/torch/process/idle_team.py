"""Makes waiting threads of GCC's OpenMP go to sleep soon, in a process that runs already."""

from __future__ import annotations

import os
import threading

import torch

from bestof.processors import room_for_tasks
from bestof.torch.process.openmp import empty_region, is_gcc, runtimes

_SPARE_TASKS = 256
"""Processes and threads that the control group must still allow beside the team."""


class IdleTeam:
    """A second team of OpenMP threads, which does nothing between `begin` and `end`.

    GCC's OpenMP counts the threads of all teams. If there are more of them than processors, a
    waiting thread spins 1,000 times before it sleeps, in place of 300,000 times. So it leaves its
    processor to neighbours. GOMP_SPINCOUNT=1000 does the same, but only if it is set before the
    runtime is loaded.
    """

    def __init__(self) -> None:
        self._end: threading.Event | None = None

    def begin(self) -> None:
        """Start the team, if there is none."""
        if self._end is not None or not can_help():
            return
        self._end = end = threading.Event()
        ready = threading.Event()
        runtime = next(filter(is_gcc, runtimes()))
        threads = _size()

        def idle() -> None:
            try:
                empty_region(runtime, threads)()
            finally:
                ready.set()
            end.wait()  # the team ends with this thread

        threading.Thread(target=idle, name="bestof-idle-team", daemon=True).start()
        ready.wait()

    def end(self) -> None:
        """End the team, if there is one."""
        end, self._end = self._end, None
        if end is not None:
            end.set()

    @property
    def begun(self) -> bool:
        """Whether the team exists."""
        return self._end is not None


def can_help() -> bool:
    """Return whether GCC's OpenMP is loaded, and the environment does not say how it waits.

    OpenMP ends the process if it cannot start a thread, so there must be ample room for the team.
    """
    told = any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
    if told or not any(map(is_gcc, runtimes())):
        return False
    room = room_for_tasks()
    return room is None or room >= _size() + _SPARE_TASKS


def _size() -> int:
    """Return how many threads make one more than there are processors.

    The thread that begins the team is not counted.
    """
    return max(2, len(os.sched_getaffinity(0)) - torch.get_num_threads() + 2)
