"""Tells which calls of optimizers end a step of a program, which may have several optimizers."""

from __future__ import annotations


class StepEnds:
    """Lets one optimizer lead: its steps end those of the program, and the others' are parts.

    The first one that steps leads. If another one steps twice without it, the program trains with
    other optimizers now, and that one leads.
    """

    def __init__(self) -> None:
        self._leader: int | None = None
        self._others: set[int] = set()  # those that have stepped since the leader

    def ends_step(self, optimizer: object) -> bool:
        """Note that an optimizer steps. Return whether this ends a step of the program."""
        own = id(optimizer)
        leads = self._leader in (None, own) or own in self._others
        if leads:
            self._leader = own
            self._others.clear()
        else:
            self._others.add(own)
        return leads
