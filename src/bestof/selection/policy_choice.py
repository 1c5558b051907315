"""Which policy a selector searches by, and which of its decisions are watched for drift."""

from __future__ import annotations

from bestof.selection import registry
from bestof.selection.decision import Decision
from bestof.selection.policies import Race
from bestof.selection.policy import Policy, searches_at_any_time
from bestof.selection.sample_interval import FIRST
from bestof.selection.winner import NEVER


class PolicyChoice:
    """The policy of one selector: its own, else that of the process, else `Race`."""

    __slots__ = ("_drift", "_own")

    def __init__(self, own: Policy | None, *, drift: bool) -> None:
        self._own = own
        self._drift = drift

    def current(self) -> Policy:
        """Return the policy of the next search."""
        return self._own or registry.shared_policy() or Race()

    def first_sample(self, decision: Decision) -> int:
        """Return which settled call of a decision is the first to be timed; NEVER if it is not
        watched.

        A decision is watched if trials made it, an alternative is left to change to, and its policy
        may search again.
        """
        others = sum(one.disqualified is None for one in decision.evidence) - 1
        measured = decision.source in ("measured", "stored") and decision.seconds is not None
        watched = self._drift and measured and others > 0 and searches_at_any_time(self.current())
        return FIRST if watched else NEVER
