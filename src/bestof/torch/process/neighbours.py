"""Lets OpenMP's threads sleep soon while other processes want the same processors."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from time import monotonic, sleep

import torch

from bestof.thread_times import thread_times
from bestof.torch.process.idle_team import IdleTeam, can_help

PERIOD = 1.0
"""The seconds between two looks."""

PATIENCE = 1.0
"""The seconds for which a fork waits until the watching thread has ended, at most.

It takes 0.1 ms, but the thread cannot end while the interpreter shuts down.
"""

CROWDED, ALONE = 0.1, 0.02
"""Shares of the time for which the threads of this process wanted a processor and had none.

There are neighbours if two looks in a row are above the first one, and none if one look is below
the second one. The time is that of all threads together: 64 threads that have each waited for 0.1 %
of a second have no neighbours.

Beside one busy process, two threads on two processors wait for a quarter of the time. On a machine
without neighbours, MobileNetV3, whose 60 regions take 3 ms, waits for 0.1 % of it, and for 0.8 to
1 % with the team. Of eight programs that compute in turn, each for half a second, one waits for 2
to 8 %, because threads of the one before still spin; a single look told 15 %.
"""

ENOUGH = 20_000_000
"""The ns for which threads must have wanted a processor before a look tells anything.

A server that computes for 5 ms ten times a second has as many neighbours as one that always
computes.
"""

RESTED = 10
"""The looks at a process that rests most of the time, after which the team ends.

If such a process begins to compute, the team's threads wake on one processor and wait for each
other: for a tenth of the time, without neighbours. So only a look without the team tells. A call of
MobileNetV3 took 7.1 ms with the team, and 3.0 ms without it.
"""


class Neighbours:
    """Watches how long this process waits for processors, and begins and ends an `IdleTeam`.

    A waiting thread that spins takes the processor from the thread that it waits for, if neighbours
    leave too few. Beside four busy processes on two cores, steps were two to four times as long. On
    a machine without neighbours, spinning is right: a region of 10 us takes 30 us if its threads
    sleep in between.

    waited: the share of the wanted time for which threads have waited, see `CROWDED`, at the last
    look with neighbours; 0 without neighbours.
    """

    def __init__(self) -> None:
        self.team = IdleTeam()
        self.waited = 0.0
        self._lock = threading.RLock()
        self._watchers: set[str] = set()
        self._refused = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rests = False
        self._was_crowded = False  # at the last look that told anything
        self._seen: dict[str, tuple[int, int]] = {}  # at the last look that told anything
        self._looked = self._told = 0.0

    def watch(self, watcher: str = "program") -> None:
        """Watch from now on, if it could help: GCC's OpenMP, and no setting by the user.

        watcher: who asks. The watch goes on until all of them have left.
        """
        with self._lock:
            self._watchers.add(watcher)
            if not self.watches and not self._refused and can_help():
                self._seen, self._looked = thread_times(), monotonic()
                self._told = self._looked
                if self._seen:
                    self._start()

    @property
    def watches(self) -> bool:
        """Whether a thread watches, and has not been told to end."""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._stop.is_set()

    def leave(self, watcher: str = "program") -> None:
        """Stop watching and end the team, unless others watch."""
        with self._lock:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._end()
                self._be_alone()

    def watch_while_alive(self, owner: object) -> None:
        """Watch as long as an object lives, such as a plan."""
        watcher = f"{type(owner).__name__} {id(owner)}"
        self.watch(watcher)
        weakref.finalize(owner, self.leave, watcher).atexit = False

    def refuse(self, refused: bool) -> None:
        """Let nobody watch, or allow those who ask from now on."""
        with self._lock:
            self._refused = refused
            if refused:
                self._end()
                self._be_alone()

    def rest(self) -> None:
        """End the thread before a fork. Only `resume` or `forget` may follow.

        Python 3.12 and newer warn if a process with more than one thread forks.
        """
        self._lock.acquire()
        self._rests = self.watches
        self._end()

    def resume(self) -> None:
        """Go on after a fork where `rest` has stopped."""
        if self._rests:
            self._start()
        self._lock.release()

    def forget(self) -> None:
        """Start anew in a forked process, where neither thread exists. A refusal still holds."""
        self.team, self.waited, self._thread = IdleTeam(), 0.0, None
        self._lock, self._watchers = threading.RLock(), set()

    def look(self, waited: float) -> None:
        """Begin or end the team. waited: the share of the wanted time, see `CROWDED`."""
        is_crowded = waited > CROWDED
        if is_crowded and self._was_crowded:
            if self.team.begun or _computing_threads() > 1:
                self.waited = waited
                self.team.begin()
        elif waited < ALONE:
            self._be_alone()
        self._was_crowded = is_crowded

    def _be_alone(self) -> None:
        self.waited = 0.0
        self.team.end()

    def _start(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(stop,), name="bestof-neighbours", daemon=True
        )
        self._stop, self._thread = stop, thread  # before it runs: an interrupt must not lose it
        with suppress(RuntimeError):  # the system starts no thread at present
            thread.start()

    def _end(self) -> None:
        """End the thread, and wait until the system has none: `join` returns a little earlier."""
        thread = self._thread
        if thread is None:
            return
        self._stop.set()  # first: an interrupt behind this line leaves a thread that ends
        task = thread.native_id
        if task is None or threading.get_native_id() == task:  # it collects the last owner
            return
        latest = monotonic() + PATIENCE
        while os.path.exists(f"/proc/self/task/{task}") and monotonic() < latest:
            sleep(0.0001)
        self._thread = None

    def _run(self, stop: threading.Event) -> None:
        rested = 0
        # A thread that has rested goes on from the last look, so that frequent forks prevent none.
        while not stop.wait(max(0.0, self._looked + PERIOD - monotonic())):
            now, self._looked = thread_times(), monotonic()
            # A thread that has ended in between is left out, and so is this one, which only looks.
            # A thread that has begun in between counts whole: it may be the one that computes.
            others = now.keys() - {str(threading.get_native_id())}
            ran, waited = (
                sum(max(0, now[one][i] - self._seen.get(one, (0, 0))[i]) for one in others)
                for i in (0, 1)
            )
            rests = ran + waited < (self._looked - self._told) * 1e9
            rested = rested + rests if self.team.begun else 0
            if rested == RESTED:
                self._be_alone()
                self._was_crowded = True  # the next look decides
            elif ran + waited >= ENOUGH:
                self.look(waited / (ran + waited))
            else:
                continue
            self._seen, self._told = now, self._looked


NEIGHBOURS = Neighbours()
"""The watch of this process."""


def _computing_threads() -> int:
    """Return PyTorch's number of threads, as the program has set it last; 1 if none can start.

    A thread that has asked once keeps the number of its first question. So a new one asks.
    """
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(torch.get_num_threads()), daemon=True)
    with suppress(RuntimeError):  # the system starts no thread at present
        asking.start()
        asking.join()
    return found[0] if found else 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=NEIGHBOURS.rest,
        after_in_parent=NEIGHBOURS.resume,
        after_in_child=NEIGHBOURS.forget,
    )
