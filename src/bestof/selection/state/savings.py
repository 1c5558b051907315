"""What the calls of winners have saved."""

from __future__ import annotations

from typing import NamedTuple

from bestof.selection.passes import PythonWinner
from bestof.selection.state.decision import Decision


class Savings(NamedTuple):
    """What the calls of winners have saved.

    `calls` is the number of calls that went straight to a winner, including those that raised.
    `seconds` is an estimate. For each problem it adds the number of calls times the difference
    between the medians of the first alternative and the chosen one, if both were measured.
    """

    calls: int = 0
    seconds: float = 0.0

    def after(self, winner: PythonWinner, decision: Decision | None) -> Savings:
        """Return the savings with the calls of one more winner."""
        gain = None if decision is None else decision.gain
        saved = 0.0 if gain is None else gain * winner.calls / len(winner.functions)
        return Savings(self.calls + winner.calls, self.seconds + saved)

    def plus(self, other: Savings) -> Savings:
        """Return both together."""
        return Savings(self.calls + other.calls, self.seconds + other.seconds)
