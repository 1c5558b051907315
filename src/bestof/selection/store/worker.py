"""A thread that works for a store, so that calls do not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from bestof.processors import is_child_of_multiprocessing
from bestof.selection.store.backoff import Backoff
from bestof.selection.store.database import Unavailable

IDLE_SECONDS = 1.0  # without work, the thread ends after this time
EXIT_SECONDS = 3.0  # at exit, stores are written for at most this long
_POLL_SECONDS = 0.05  # in a child of multiprocessing, which waits for this thread before it exits


class Job:
    """One piece of work, and the place where its caller waits for the result.

    `action` may raise Unavailable. If the store is busy, the job is tried again until `deadline` (a
    time of time.monotonic). A `patient` job also waits for a store that is away in passing.
    """

    __slots__ = (
        *("_action", "_done", "_finished", "_patient"),
        *("begun", "deadline", "error", "result", "since"),
    )

    def __init__(self, action: Callable[[], Any], seconds: float, *, patient: bool = False) -> None:
        self._action = action
        self._patient = patient
        # A plain lock, not an Event: an interrupting signal handler cannot leave it half-changed.
        self._done = threading.Lock()
        self._done.acquire()
        self._finished = False
        self.deadline = time.monotonic() + seconds
        self.result: Any = None
        self.error: Exception | None = None
        self.since = 0.0
        self.begun = False  # whether a thread has taken it up

    def attempt(self) -> bool:
        """Run the action. Return whether the job is finished. One thread at a time calls this."""
        if self._finished:
            return True
        self.begun = True
        try:
            self.result = self._action()
        except Unavailable as error:
            again = error.busy or (self._patient and error.passing)
            if again and time.monotonic() < self.deadline:
                return False
            self.error = error
        except Exception as error:  # any error goes to the caller, not to this thread
            self.error = error
        self.since = time.monotonic()
        self._finished = True
        self._done.release()
        return True

    @property
    def finished(self) -> bool:
        """Whether there is a result or an error."""
        return self._finished

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds. Return whether the job is finished."""
        if not self._finished and seconds > 0 and self._done.acquire(timeout=seconds):
            self._done.release()
        return self._finished


class _Stop:
    """Tells the thread to end, unless the thread that asked has stopped waiting."""

    withdrawn = False


class Worker:
    """Runs jobs one after the other in a thread.

    The thread starts with the first job, and ends when there is no more work. `tick` does the
    regular work. It returns the seconds until it should be called again, or None if there is
    nothing to do. `rest` is called when the thread ends. Neither runs twice at the same time. If no
    thread can be started, the caller's thread does the work.
    """

    def __init__(self, tick: Callable[[], float | None], rest: Callable[[], None]) -> None:
        self._tick = tick
        self._rest = rest
        self.renew()

    def renew(self) -> None:
        """Start again in a forked child, which has neither the thread nor the owners of the
        locks."""
        # This queue is written in C. It is safe in signal handlers, and in finalizers that
        # interrupt a thread inside it.
        self._queue: SimpleQueue[Job | _Stop | None] = SimpleQueue()
        self.guard = threading.RLock()  # held to start or to end the thread
        self._running = threading.Lock()  # held while a job runs
        self._thread: threading.Thread | None = None
        self._inline_until: float | None = None
        self._backoff = Backoff()

    def submit(self, job: Job | None = None) -> None:
        """Add a job. None asks for the regular work only."""
        self._queue.put(job)
        if self._inline_until is not None:
            self._run_here(job)
            return
        with self.guard:
            if self._thread is not None and self._thread.is_alive():
                return
            # A child of multiprocessing runs no exit functions, but it waits for threads that are
            # not daemons.
            waited_for = is_child_of_multiprocessing()
            self._thread = threading.Thread(
                target=self._run, args=(self._queue, waited_for), name="bestof store"
            )
            self._thread.daemon = not waited_for
            try:
                self._thread.start()
                return
            # no thread can start: there are too many, or the interpreter is ending
            except RuntimeError:
                self._thread = None
        self._run_here(job)

    def work_here(self, until: float) -> None:
        """From now on, work in the threads of the callers, because the process is ending.

        They stop at the time `until`.
        """
        self._inline_until = until

    @property
    def is_ending(self) -> bool:
        """Return whether `work_here` was called."""
        return self._inline_until is not None

    def stop(self, seconds: float) -> bool:
        """End the thread after its current work. Return whether it ended in time."""
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return True
        order = _Stop()
        self._queue.put(order)
        thread.join(seconds)
        order.withdrawn = thread.is_alive()
        return not order.withdrawn

    def _run(self, queue: SimpleQueue[Job | _Stop | None], waited_for: bool) -> None:
        held: list[Job] = []
        orphan_since: float | None = None
        try:
            while True:
                delay = self._step(held)
                idle = _POLL_SECONDS if waited_for else IDLE_SECONDS
                try:
                    came = [queue.get(timeout=idle if delay is None else min(delay, idle))]
                except Empty:
                    if delay is None and self._leave(queue):
                        return
                    if waited_for and not threading.main_thread().is_alive():
                        orphan_since = orphan_since or time.monotonic()
                        if time.monotonic() - orphan_since > EXIT_SECONDS:
                            return
                    continue
                # Every save asks for the regular work: take all these requests at once.
                with suppress(Empty):
                    while True:
                        came.append(queue.get_nowait())
                held.extend(job for job in came if isinstance(job, Job))
                if any(isinstance(one, _Stop) and not one.withdrawn for one in came):
                    return
        finally:
            for job in held:
                queue.put(job)
            with self._running:
                self._rest()

    def _leave(self, queue: SimpleQueue[Job | _Stop | None]) -> bool:
        # Do not wait for the guard: a fork holds it while it waits for this thread.
        if not self.guard.acquire(blocking=False):
            return False
        try:
            if not queue.empty():
                return False
            self._thread = None
            return True
        finally:
            self.guard.release()

    def _step(self, held: list[Job]) -> float | None:
        """Try every job once, then do the regular work. Return the seconds until the next step."""
        with self._running:
            held[:] = [job for job in held if not job.attempt()]
            delay = self._tick()
        if not held:
            self._backoff.reset()
            return delay
        soon = self._backoff.seconds()
        return soon if delay is None else min(delay, soon)

    def _run_here(self, job: Job | None) -> None:
        """Work in the calling thread: once, or until the time that `work_here` has set."""
        held = [] if job is None else [job]
        until = self._inline_until or 0.0
        try:
            while True:
                if not self._running.acquire(timeout=max(0.0, until - time.monotonic())):
                    return  # the thread is stuck in a job
                try:
                    held[:] = [one for one in held if not one.attempt()]
                    delay = self._tick()
                finally:
                    self._running.release()
                if (not held and delay is None) or time.monotonic() >= until:
                    return
                time.sleep(self._backoff.seconds())
        finally:
            if self._running.acquire(blocking=False):
                try:
                    self._rest()
                finally:
                    self._running.release()
