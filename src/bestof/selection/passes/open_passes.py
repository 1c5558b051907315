"""The open passes of one problem of a group, and which alternative answers their next stages."""

from __future__ import annotations

from threading import get_ident

from bestof.selection.passes.group_pass import Pass
from bestof.selection.passes.winner import PASSES_KEPT, PythonWinner

_WINNERS_KEPT = 16  # the most earlier winners that are kept for their open passes


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
