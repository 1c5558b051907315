"""Passes of one problem of a group that were begun and not finished, and who is to answer their
next stages."""

from __future__ import annotations

from threading import get_ident

from bestof.selection.group_pass import Pass
from bestof.selection.winner import PASSES_KEPT, PythonWinner

_WINNERS_KEPT = 16  # earlier ones whose passes on the hot path may still be open


class Retired:
    """A winner whose problem was opened again: what was begun with it on the hot path is finished
    by it."""

    __slots__ = ("position", "winner")
    thread = None  # of many

    def __init__(self, winner: PythonWinner, position: int) -> None:
        self.winner = winner
        self.position = position

    def is_open(self, own: bool) -> bool:
        """Whether a pass is open: of the calling thread, or of any."""
        return self.winner.is_open(own)


class OpenPasses:
    """Oldest first; of more than PASSES_KEPT the oldest are forgotten, for forwards of an
    evaluation never see their backward. Called with the lock of the selector held.

    A stage belongs to the youngest pass of its own thread that lacks it, youngest, because backward
    passes come in reverse order; where its thread has begun none, as the thread of all backward
    passes, to the youngest of another.
    """

    __slots__ = ("_passes",)

    def __init__(self) -> None:
        self._passes: dict[
            Pass | Retired, None
        ] = {}  # a dict, for the oldest and the youngest leave it

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
        """A stage of a pass was answered; whether the pass is finished by it."""
        if stage == 0:
            begun.awaited &= ~1
            if begun.awaited == 0:  # a group of one stage
                self._drop_finished(begun)
        begun.unanswered -= 1
        return begun.unanswered == 0

    def withdraw(self, begun: Pass) -> None:
        """A pass failed, and nobody is to finish it."""
        self._passes.pop(begun, None)

    def take(self, stage: int) -> Pass | None:
        """The pass that a call of this later stage belongs to; None where there is none."""
        return self.take_own(stage) or self.take_anyones(stage)

    def take_own(self, stage: int) -> Pass | None:
        """The youngest of the calling thread that lacks this stage."""
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
        """The youngest of any thread that lacks this stage."""
        for begun in reversed(self._passes):
            if isinstance(begun, Retired):
                if begun.winner.take_anyones(stage):
                    return self._of_retired(begun)
            elif begun.take(stage):
                self._drop_finished(begun)
                return begun
        return None

    def retire(self, winner: PythonWinner, position: int) -> None:
        """Take over the passes that were begun with a winner, of whom these are the earlier
        ones."""
        winner.earlier = (
            _NONE  # whoever still reads it takes the long way for all but its own passes
        )
        self._passes[Retired(winner, position)] = None
        retired = [one for one in self._passes if isinstance(one, Retired)]
        for one in retired[:-_WINNERS_KEPT]:
            del self._passes[one]

    def forget_own(self) -> None:
        """The calling thread is done with its passes."""
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
        """Whether the calling thread has begun one of these."""
        thread = get_ident()
        return any(
            begun.is_open(True) if isinstance(begun, Retired) else begun.thread == thread
            for begun in self._passes
        )

    def prune(self) -> None:
        """Let go of winners all of whose passes are finished."""
        for begun in list(self._passes):
            if isinstance(begun, Retired) and not begun.is_open(False):
                del self._passes[begun]

    def clear(self) -> None:
        """Forget all."""
        self._passes.clear()

    def _of_retired(self, retired: Retired) -> Pass:
        """One of its passes, which nobody times and whose later stages are counted by the
        winner."""
        if not retired.is_open(False):
            del self._passes[retired]
        return Pass(retired.position, len(retired.winner.functions), timed=False)

    def _drop_finished(self, begun: Pass) -> None:
        if begun.awaited == 0:
            self._passes.pop(begun, None)


_NONE = OpenPasses()
