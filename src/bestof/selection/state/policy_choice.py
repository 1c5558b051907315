"""Choose the policy of a selector, and the decisions that are watched for drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.selection.passes import NEVER
from bestof.selection.policies import Race
from bestof.selection.policies.policy import Policy, Search, searches_at_any_time
from bestof.selection.state import registry
from bestof.selection.state.decision import Decision
from bestof.selection.state.sample_interval import FIRST

_DEFAULT = Race()  # made once: each trial asks for the policy


@dataclass(frozen=True, slots=True)
class UnlessShared:
    """The policy of one of bestof's own selectors: that of `use_policy`, or else `own`.

    If a window of steps is in force, `own` searches in these steps only.
    """

    own: Race

    def current(self) -> Policy:
        """Return the policy for the next search."""
        shared, window = registry.Defaults.policy, registry.Defaults.window
        if shared is not None:
            return shared
        return self.own if window is None else window.around(self.own)

    def start(self, alternatives: Sequence[str]) -> Search:
        """Begin a search by `own`."""
        return self.own.start(alternatives)

    def shortened(self) -> Policy:
        """Return the short form of `own`."""
        return self.own.shortened()


class PolicyChoice:
    """The policy of one selector: its own, or else that of the process, or else `Race`."""

    __slots__ = ("_drift", "_own")

    def __init__(self, own: Policy | None, *, drift: bool) -> None:
        self._own = own
        self._drift = drift

    @property
    def follows_process(self) -> bool:
        """Whether a policy of the process stands above that of the selector."""
        return self._own is None or isinstance(self._own, UnlessShared)

    def current(self) -> Policy:
        """Return the policy of the next search."""
        if isinstance(self._own, UnlessShared):
            return self._own.current()
        return self._own or registry.shared_policy() or _DEFAULT

    def first_sample(self, decision: Decision) -> int:
        """Return the number of the settled call that is timed first, or NEVER.

        A decision is watched for drift on three conditions: trials made it, another alternative is
        left, and its policy may search again.
        """
        others = sum(one.disqualified is None for one in decision.evidence) - 1
        measured = decision.source in ("measured", "stored") and decision.seconds is not None
        watched = self._drift and measured and others > 0 and searches_at_any_time(self.current())
        return FIRST if watched else NEVER
