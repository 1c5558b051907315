"""One pass of a group: the stages of one alternative, called one after the other."""

from __future__ import annotations

from threading import get_ident


class Pass:
    """One walk through the stages of a group by one alternative."""

    __slots__ = ("awaited", "clean", "position", "seconds", "thread", "timed", "unanswered")

    def __init__(self, position: int, stages: int, *, timed: bool) -> None:
        self.position = position
        self.timed = timed
        self.awaited = (1 << stages) - 1  # a bit for each stage: a set would take the threefold
        self.unanswered = stages
        self.seconds = 0.0
        self.clean = True
        self.thread = get_ident()

    def take(self, stage: int) -> bool:
        """Whether it lacks this stage, and has its first behind it; then that stage is taken for
        answered, so that no other thread answers it too."""
        if self.awaited & 1 or not self.awaited >> stage & 1:
            return False
        self.awaited &= ~(1 << stage)
        return True
