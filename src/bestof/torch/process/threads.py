"""Lowers PyTorch's threads to what the process may use.

PyTorch starts a thread for each processor of the machine or of the affinity. It knows no quota: in
a container that may use two of 64 processors it starts 64 threads. They spend the quota by waiting
for each other, and the system then stops all of them for the rest of each period.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bestof.processors import (
    Room,
    is_child_of_multiprocessing,
    is_first_rank_here,
    room_for_threads,
)
from bestof.selection.notice import warn


@dataclass(frozen=True, slots=True)
class Lowered:
    """PyTorch's threads `before` and `now`. `limit` says in words what allows no more."""

    before: int
    now: int
    limit: str


class FittedThreads:
    """Lowers the threads by `fit`, and puts the old number back by `undo`.

    It never raises a number. A number that the program sets after `fit` stays. Threads of the
    program that have computed before keep theirs, as with `torch.set_num_threads`.
    """

    def __init__(self) -> None:
        self.lowered: Lowered | None = None  # while it holds
        self._told = False

    def fit(self) -> None:
        """Lower the threads if more were started than can run at once. Tell it once."""
        present = torch.get_num_threads()
        room = room_for_threads()
        if present <= room.threads:
            return
        before = present if self.lowered is None else self.lowered.before
        # Noted first: an interrupt between these lines must not lose the old number.
        self.lowered = Lowered(before, room.threads, room.limit)
        torch.set_num_threads(room.threads)
        if not self._told and _speaks():
            self._told = True
            warn(_sentence(present, room))

    def undo(self) -> None:
        """Put the old number back, unless the program has set one meanwhile."""
        lowered = self.lowered
        if lowered is not None and torch.get_num_threads() == lowered.now:
            torch.set_num_threads(lowered.before)
        self.lowered = None


def _speaks() -> bool:
    """Return whether this process tells. Of ranks and their workers, only the first one does."""
    return not is_child_of_multiprocessing() and is_first_rank_here()


def _sentence(threads: int, room: Room) -> str:
    return (
        f"PyTorch computes on {room.threads} in place of {threads} threads: {room.limit}. "
        'The configuration {"threads": {"fit": false}} leaves the number alone'
    )
