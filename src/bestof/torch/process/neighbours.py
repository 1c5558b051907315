"""Lets OpenMP's threads sleep soon while other processes want the same processors."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import torch

from bestof.torch.process.idle_team import IdleTeam, can_help

PERIOD = 1.0
"""The seconds between two looks."""

CROWDED, ALONE = 0.05, 0.01
"""Shares of the time for which the threads of this process have waited for a processor.

Above the first one there are neighbours, below the second one there are none. Between them,
nothing is changed. If more than one thread computes, the time is that of all threads together:
64 threads that have each waited for 0.1 % of a second have no neighbours.
"""


class Neighbours:
    """Watches how long this process waits for processors, and begins and ends an `IdleTeam`.

    A waiting thread that spins takes the processor from the thread that it waits for, if neighbours
    leave too few. Beside four busy processes on two cores, steps were two to four times as long. On
    a machine without neighbours, spinning is right: a region of 10 us takes 30 us if its threads
    sleep in between.
    """

    def __init__(self) -> None:
        self.team = IdleTeam()
        self._stop: threading.Event | None = None

    def watch(self) -> None:
        """Watch from now on, if it could help: GCC's OpenMP, and no setting by the user."""
        if self._stop is not None or not can_help() or not _times():
            return
        # The team is new: a watcher that was left ends its own one a moment later.
        self._stop, self.team = stop, team = threading.Event(), IdleTeam()
        try:
            threading.Thread(
                target=self._run, args=(stop, team), name="bestof-neighbours", daemon=True
            ).start()
        except RuntimeError:  # the system starts no thread at present
            self._stop = None

    def leave(self) -> None:
        """Stop watching, and end the team."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()
        self.team.end()

    def forget(self) -> None:
        """Start anew in a forked process, where neither thread exists."""
        self.team, self._stop = IdleTeam(), None

    def look(self, waited: float, team: IdleTeam) -> None:
        """Begin or end a team. waited: the share of the time for which threads have waited."""
        if waited > CROWDED and torch.get_num_threads() > 1:
            team.begin()
        elif waited < ALONE:
            team.end()

    def _run(self, stop: threading.Event, team: IdleTeam) -> None:
        before, began = _times(), monotonic()
        while not stop.wait(PERIOD):
            now, ended = _times(), monotonic()
            # A thread that has ended in between is left out.
            both = [(now[one], before[one]) for one in now.keys() & before.keys()]
            ran, waited = (sum(max(0, new[i] - old[i]) for new, old in both) for i in (0, 1))
            self.look(waited / max(ran, (ended - began) * 1e9), team)
            before, began = now, ended
        team.end()


def _times(folder: Path = Path("/proc/self/task")) -> dict[str, tuple[int, int]]:
    """Return for how many ns each thread has run, and waited to run; empty if unknown."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError, ValueError):
                ran, waited, _ = (folder / name / "schedstat").read_text().split()
                found[name] = int(ran), int(waited)
    return found
