"""What the examination asks of a trap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen


@dataclass(frozen=True, slots=True)
class Treatment:
    """A cure that can be tried on a running program. Both are called between two steps."""

    apply: Callable[[], object]
    undo: Callable[[], object]


class Trap(ABC):
    """A known trap.

    of_program: only a program of the user can be in it. Without a script, it is left out.
    keeps: if its treatment has helped, the later ones are tried with it. is_slow: to find it out
    may take minutes. What the other traps have found is told before.
    """

    name: str
    of_program = False
    keeps = False
    is_slow = False

    def treatment(self, seen: Seen) -> Treatment | None:  # noqa: B027 - most traps have none
        """Return the cure to try on the program's steps; None if there is nothing to try."""

    @abstractmethod
    def findings(self, seen: Seen) -> Sequence[Finding]:
        """Return what was found. `seen.gains` has what the treatment has gained, if it was tried.

        It is called once, when the program's steps have ended.
        """
