"""A pass of a group: the stages of one alternative, called one after the other."""

from __future__ import annotations

from threading import get_ident


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
