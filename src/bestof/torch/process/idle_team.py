"""Makes waiting threads of GCC's OpenMP go to sleep soon, in a process that runs already."""

from __future__ import annotations

import ctypes
import os
import resource
import threading

from bestof.processors import processors, room_for_mappings, room_for_tasks
from bestof.torch.process.openmp import empty_region, is_gcc, runtimes

_SPARE_TASKS = 256
"""Processes and threads that control groups and `ulimit` must still allow beside the team."""

_SPARE_BYTES = 1 << 30
"""Bytes of mappings that `ulimit` must still allow beside the stacks of the team."""

_PROCESSORS = len(processors().allowed)
"""GCC's OpenMP counts the processors when it is loaded: a narrower affinity changes nothing."""


class IdleTeam:
    """A second team of OpenMP threads, which does nothing between `begin` and `end`.

    GCC's OpenMP counts the threads of all teams. If there are more of them than processors, a
    waiting thread spins 1,000 times before it sleeps, in place of 300,000 times. So it leaves its
    processor to neighbours. GOMP_SPINCOUNT=1000 does the same, but only if it is set before the
    runtime is loaded.
    """

    def __init__(self) -> None:
        self._end: threading.Event | None = None
        self._refused = False  # whether the system had too few threads: it is not asked again

    def begin(self) -> None:
        """Start the team, if there is none and limits leave room for it."""
        if self._end is not None or self._refused or not can_help():
            return
        self._refused = not _can_start(2 * _size())  # as many again are the program's
        if self._refused:
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

        try:
            threading.Thread(target=idle, name="bestof-idle-team", daemon=True).start()
        except RuntimeError:  # the system starts no thread at present
            self._end = None
            return
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

    OpenMP ends the process if it cannot start a thread. So the limits that can be read must leave
    ample room for the team.
    """
    told = any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
    if told or not any(map(is_gcc, runtimes())):
        return False
    tasks, mappings = room_for_tasks(), room_for_mappings()
    if tasks is not None and tasks < _size() + _SPARE_TASKS:
        return False
    return mappings is None or mappings >= _size() * _stack() + _SPARE_BYTES


def _can_start(threads: int) -> bool:
    """Return whether the system starts so many threads at once. They end within 50 ms.

    Some limits are out of sight, such as the number of tasks that a pod allows its containers.
    """
    libc, started = ctypes.CDLL(None), []
    sleep = ctypes.cast(libc.usleep, ctypes.c_void_p)
    try:
        for _ in range(threads):
            thread = ctypes.c_ulong()
            if libc.pthread_create(ctypes.byref(thread), None, sleep, ctypes.c_void_p(50_000)):
                return False
            started.append(thread)
    finally:
        for thread in started:
            libc.pthread_join(thread, None)
    return True


def _size() -> int:
    """Return how many threads the team has: by itself, it is more than there are processors."""
    return max(_PROCESSORS, len(processors().allowed)) + 1


def _stack() -> int:
    """Return the bytes of a thread's stack, or more."""
    if any(name in os.environ for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE")):
        return 1 << 40  # in units that are not read here
    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return 8 << 20 if size == resource.RLIM_INFINITY else max(8 << 20, size)
