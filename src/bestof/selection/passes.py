"""Passes through the stages of a group, and the winners that answer them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

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
_WINNERS_KEPT = 16  # the most earlier winners that are kept for their open passes


class Pass:
    """One pass through the stages of a group, all answered by one alternative.

    `position` is the alternative. `awaited` has a bit for each stage that is still to come; a set
    would take three times as long. `clean` becomes false once the times of the pass cannot count.
    """

    __slots__ = ("awaited", "clean", "position", "seconds", "thread", "timed", "unanswered")

    def __init__(self, position: int, stages: int, *, timed: bool) -> None:
        self.position = position
        self.timed = timed
        self.awaited = (1 << stages) - 1
        self.unanswered = stages
        self.seconds = 0.0
        self.clean = True
        self.thread = get_ident()

    def take(self, stage: int) -> bool:
        """Return whether this pass needs the stage, and reserve the stage for the caller.

        The first stage must be reserved before the others. A reserved stage is not given to another
        thread.
        """
        if self.awaited & 1 or not self.awaited >> stage & 1:
            return False
        self.awaited &= ~(1 << stage)
        return True


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
        self.earlier: OpenPasses | None = None
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


class _Counting:
    lock = threading.RLock()
    """Held while passes are counted without the GIL; a signal handler may come in between."""


class WinnerWithoutGil(PythonWinner):
    """A winner for a Python without the GIL, where two threads may change a count at once.

    A lost count would let the stage of one alternative be answered by another one.
    """

    __slots__ = ()

    def begin(self) -> bool:
        """Begin a pass of the calling thread, as PythonWinner does."""
        with _Counting.lock:
            return super().begin()

    def take(self, stage: int) -> bool:
        """Return whether the calling thread has a pass that lacks this stage; book it if so."""
        with _Counting.lock:
            return super().take(stage)

    def take_anyones(self, stage: int) -> bool:
        """Return whether any thread has a pass that lacks this stage; book it if so."""
        with _Counting.lock:
            return super().take_anyones(stage)

    def pass_over_earlier(self) -> None:
        """Note that the calling thread has no pass in `earlier`."""
        with _Counting.lock:
            super().pass_over_earlier()


def _after_fork() -> None:
    _Counting.lock = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Retired:
    """A winner of a reopened problem. It finishes the passes that it began on the hot path."""

    __slots__ = ("position", "winner")
    thread = None  # it has passes of many threads

    def __init__(self, winner: PythonWinner, position: int) -> None:
        self.winner = winner
        self.position = position

    def is_open(self, own: bool) -> bool:
        """Return whether a pass is open: of the calling thread if `own`, else of any thread."""
        return self.winner.is_open(own)


class OpenPasses:
    """The open passes of one problem, oldest first. At most PASSES_KEPT are kept.

    A pass that is never finished, such as the forward of an evaluation, is dropped as one of the
    oldest.

    A stage belongs to the youngest pass of its own thread that lacks the stage. It is the youngest,
    because backward passes come in reverse order. If the thread has no such pass, the stage belongs
    to the youngest one of another thread. PyTorch runs all backward passes in a thread of their
    own.

    Called with the lock of the selector held.
    """

    __slots__ = ("_passes",)

    def __init__(self) -> None:
        self._passes: dict[
            Pass | Retired, None
        ] = {}  # a dict, because both the oldest and the youngest may leave it

    def __len__(self) -> int:
        return len(self._passes)

    def begin(self, position: int, stages: int, *, timed: bool) -> Pass:
        """Begin a pass of the calling thread."""
        if len(self._passes) >= PASSES_KEPT:
            del self._passes[next(iter(self._passes))]
        begun = Pass(position, stages, timed=timed)
        self._passes[begun] = None
        return begun

    def close_stage(self, begun: Pass, stage: int) -> bool:
        """Note that a stage of a pass was answered; return whether the pass is finished."""
        if stage == 0:
            begun.awaited &= ~1
            if begun.awaited == 0:  # a group of one stage
                self._drop_finished(begun)
        begun.unanswered -= 1
        return begun.unanswered == 0

    def withdraw(self, begun: Pass) -> None:
        """Drop a pass that failed."""
        self._passes.pop(begun, None)

    def take(self, stage: int) -> Pass | None:
        """Return the pass that a call of this later stage belongs to, or None."""
        return self.take_own(stage) or self.take_anyones(stage)

    def take_own(self, stage: int) -> Pass | None:
        """Return the calling thread's youngest pass that lacks this stage, or None."""
        thread = get_ident()
        for begun in reversed(self._passes):
            if begun.thread == thread:
                if begun.take(stage):
                    self._drop_finished(begun)
                    return begun
            elif isinstance(begun, Retired) and begun.winner.take(stage):
                return self._of_retired(begun)
        return None

    def take_anyones(self, stage: int) -> Pass | None:
        """Return the youngest pass of any thread that lacks this stage, or None."""
        for begun in reversed(self._passes):
            if isinstance(begun, Retired):
                if begun.winner.take_anyones(stage):
                    return self._of_retired(begun)
            elif begun.take(stage):
                self._drop_finished(begun)
                return begun
        return None

    def retire(self, winner: PythonWinner, position: int) -> None:
        """Take over the open passes of a winner. They are younger than those here."""
        # A call that still reads this winner answers passes of this winner only, or takes the long
        # way.
        winner.earlier = _NONE
        self._passes[Retired(winner, position)] = None
        retired = [one for one in self._passes if isinstance(one, Retired)]
        for one in retired[:-_WINNERS_KEPT]:
            del self._passes[one]

    def forget_own(self) -> None:
        thread = get_ident()
        for begun in list(self._passes):
            if isinstance(begun, Retired):
                for stage in range(1, len(begun.winner.functions)):
                    while begun.winner.take(stage):
                        pass
            elif begun.thread == thread:
                del self._passes[begun]
        self.prune()

    def has_own(self) -> bool:
        """Return whether the calling thread has begun one of these."""
        thread = get_ident()
        return any(
            begun.is_open(True) if isinstance(begun, Retired) else begun.thread == thread
            for begun in self._passes
        )

    def prune(self) -> None:
        """Drop the winners whose passes are all finished."""
        for begun in list(self._passes):
            if isinstance(begun, Retired) and not begun.is_open(False):
                del self._passes[begun]

    def clear(self) -> None:
        self._passes.clear()

    def _of_retired(self, retired: Retired) -> Pass:
        """Return a pass of a retired winner. It is not timed; the winner counts its stages."""
        if not retired.is_open(False):
            del self._passes[retired]
        return Pass(retired.position, len(retired.winner.functions), timed=False)

    def _drop_finished(self, begun: Pass) -> None:
        if begun.awaited == 0:
            self._passes.pop(begun, None)


_NONE = OpenPasses()
