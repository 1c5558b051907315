"""The winner of a settled problem: its functions, its count of calls, and its open passes."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from bestof.selection.passes.group_pass import Pass

NEVER = 2**64 - 1  # a count that calls never reach
# While a call is sampled, the next sample lies so many calls ahead. `_sampled` replaces it. If an
# interrupt comes before, the watch for drift goes on after so many calls.
WHILE_SAMPLED = 1024
# The number of open passes that are kept for a thread. With so many equal layers, every backward
# pass still finds its forward pass.
PASSES_KEPT = 4096
THREADS_KEPT = 128  # the number of threads whose passes are kept; the oldest are dropped

# Places in a thread's list; the count of stage 1 is at _AWAITED + 1.
_BEGUN, _SEARCHED, _AWAITED = 0, 1, 1


class EarlierPasses(Protocol):
    """Passes that were begun before a winner was found; see `open_passes.py`."""

    def __len__(self) -> int:
        """Return how many are open."""

    def take_own(self, stage: int) -> Pass | None:
        """Return the calling thread's pass that lacks this stage."""

    def take_anyones(self, stage: int) -> Pass | None:
        """Return any thread's pass that lacks this stage."""

    def forget_own(self) -> None:
        """Drop the passes of the calling thread."""

    def has_own(self) -> bool:
        """Return whether the calling thread has an open pass."""

    def retire(self, winner: PythonWinner, position: int) -> None:
        """Take over the passes that were begun with a winner."""


class PythonWinner:
    """The functions of a settled problem's alternative, by stage; a plain alternative has one.

    `calls` is the number of calls that went straight to these functions, including those that
    raised. The hot path hands the call number `sample_at` to `_sampled` of the selector. Before, it
    sets `sample_at` to WHILE_SAMPLED calls later.

    A winner of a group also counts its open passes, by thread and by missing stage, because the
    alternative that begins a pass also finishes it. `earlier` holds the open passes from before
    this winner, or None.
    """

    __slots__ = (
        "_awaited",
        "_later_stages",
        "_threads",
        "calls",
        "earlier",
        "functions",
        "sample_at",
    )

    def __init__(self, functions: tuple[Callable[..., Any], ...], sample_at: int = NEVER) -> None:
        self.functions = functions
        self.sample_at = sample_at
        self.calls = 0
        self.earlier: EarlierPasses | None = None
        self._later_stages = range(1, len(functions))
        self._awaited = [0] * len(functions)
        # By thread: the passes begun; whether `earlier` has none of the thread; those that lack
        # each later stage.
        self._threads: dict[int, list[int]] = {}

    def begin(self) -> bool:
        """Begin a pass of the calling thread.

        Return false, and begin none, if the caller must first drop the thread's passes in
        `earlier`.
        """
        mine = self._threads.get(get_ident()) or self._added()
        if self.earlier is not None and mine[_BEGUN] >= PASSES_KEPT and not mine[_SEARCHED]:
            return False
        mine[_BEGUN] += 1
        for stage in self._later_stages:
            # If other threads finish its passes, a thread's own count only grows. It is at most the
            # count of all threads.
            mine[_AWAITED + stage] = min(mine[_AWAITED + stage], self._awaited[stage])
            if mine[_AWAITED + stage] < PASSES_KEPT:
                mine[_AWAITED + stage] += 1
                self._awaited[stage] += 1
        return True

    def withdraw(self) -> None:
        """Drop the pass that the calling thread has just begun."""
        for stage in self._later_stages:
            self.take(stage)

    def answers(self, stage: int) -> bool:
        """Return whether this later stage belongs to a pass of this winner, and book it if so.

        The youngest pass of the calling thread comes first, then passes of other threads. Return
        false if the stage may belong to an earlier pass.
        """
        if self.take(stage):
            return True
        if self.earlier is None:
            self.take_anyones(stage)
            return True
        mine = self._threads.get(get_ident())
        return mine is not None and bool(mine[_SEARCHED]) and self.take_anyones(stage)

    def take(self, stage: int) -> bool:
        """Return whether the calling thread has a pass that lacks this stage; book it if so."""
        mine = self._threads.get(get_ident())
        if mine is None or mine[_AWAITED + stage] == 0:
            return False
        if self._awaited[stage] == 0:
            mine[_AWAITED + stage] = 0  # others have finished them
            return False
        mine[_AWAITED + stage] -= 1
        self._awaited[stage] -= 1
        return True

    def take_anyones(self, stage: int) -> bool:
        """Return whether any thread has a pass that lacks this stage; book it if so."""
        if self._awaited[stage] == 0:
            return False
        self._awaited[stage] -= 1
        return True

    def pass_over_earlier(self) -> None:
        """Note that the calling thread has no pass in `earlier`."""
        mine = self._threads.get(get_ident()) or self._added()
        mine[_SEARCHED] = 1

    def is_open(self, own: bool) -> bool:
        """Return whether a pass is open: of the calling thread if `own`, else of any thread."""
        return any(self._threads.get(get_ident(), [])[_AWAITED + 1 :] if own else self._awaited)

    def _added(self) -> list[int]:
        if len(self._threads) >= THREADS_KEPT:
            self._threads.pop(next(iter(self._threads)), None)
        mine = self._threads[get_ident()] = [0, 0] + [0] * (len(self.functions) - 1)
        return mine
