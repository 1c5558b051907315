"""Who answers the calls of a settled problem, how many it has answered, and which of its passes are
open."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from bestof.selection.group_pass import Pass

NEVER = 2**64 - 1  # the count of calls that is not reached
# A thread that has begun as many passes since is done with those from before: of as many equal
# layers, forwards first, every backward comes back to its own.
PASSES_KEPT = 4096
THREADS_KEPT = 128  # of which it is known who began what; of more, the first to come are forgotten

_BEGUN, _SEARCHED, _AWAITED = (
    0,
    1,
    1,
)  # places in a thread's list; the count of stage 1 is at _AWAITED + 1


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
    """The functions of a settled problem's alternative by stage (a plain alternative has one), and
    two counts.

    `calls`: how many went straight to these functions, whether they then raised or not.
    `sample_at`: the call that brings `calls` to this is handed to `_sampled` of its selector; the
    hot path sets it to NEVER as it does so.

    Of a group also, by thread, how many passes were begun and lack which stage: whatever is decided
    next, they are finished by who began them. `earlier` are open passes from before this winner,
    None where there are none.
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
        self._threads: dict[
            int, list[int]
        ] = {}  # how many begun; whether `earlier` has none of it; awaited, by stage

    def begin(self) -> bool:
        """The calling thread begins a pass. False, and none is begun, where what the thread has in
        `earlier` is to be forgotten and passed over first."""
        mine = self._threads.get(get_ident()) or self._added()
        if self.earlier is not None and mine[_BEGUN] >= PASSES_KEPT and not mine[_SEARCHED]:
            return False
        mine[_BEGUN] += 1
        for stage in self._later_stages:
            # Where others finish its passes, a thread's own count only grows: no more of them than
            # of all are open.
            mine[_AWAITED + stage] = min(mine[_AWAITED + stage], self._awaited[stage])
            if mine[_AWAITED + stage] < PASSES_KEPT:
                mine[_AWAITED + stage] += 1
                self._awaited[stage] += 1
        return True

    def withdraw(self) -> None:
        """The pass that the calling thread has just begun was none."""
        for stage in self._later_stages:
            self.take(stage)

    def answers(self, stage: int) -> bool:
        """Whether this later stage belongs to a pass of this winner, which is taken for answered.
        Not where it may be that of an earlier pass: the one of its own thread that was begun last
        comes first, then those of others."""
        if self.take(stage):
            return True
        if self.earlier is None:
            self.take_anyones(stage)
            return True
        mine = self._threads.get(get_ident())
        return mine is not None and bool(mine[_SEARCHED]) and self.take_anyones(stage)

    def take(self, stage: int) -> bool:
        """Whether the calling thread has begun a pass that lacks this stage, which is taken for
        answered."""
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
        """The same for any thread's passes."""
        if self._awaited[stage] == 0:
            return False
        self._awaited[stage] -= 1
        return True

    def pass_over_earlier(self) -> None:
        """The calling thread has no pass in `earlier`, and never will have."""
        mine = self._threads.get(get_ident()) or self._added()
        mine[_SEARCHED] = 1

    def is_open(self, own: bool) -> bool:
        """Whether a pass is open: of the calling thread, or of any."""
        return any(self._threads.get(get_ident(), [])[_AWAITED + 1 :] if own else self._awaited)

    def _added(self) -> list[int]:
        if len(self._threads) >= THREADS_KEPT:
            self._threads.pop(next(iter(self._threads)), None)
        mine = self._threads[get_ident()] = [0, 0] + [0] * (len(self.functions) - 1)
        return mine
