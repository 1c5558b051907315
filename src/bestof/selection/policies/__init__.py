"""The policies. Each decides which alternative to try next, and when to stop."""

from bestof.selection.policies.drift import Drift
from bestof.selection.policies.fixed import Fixed
from bestof.selection.policies.mixture import Mixture
from bestof.selection.policies.neighbour import Neighbour
from bestof.selection.policies.parse import POLICIES, parse_policy
from bestof.selection.policies.race import Race
from bestof.selection.policies.rounds import Rounds
from bestof.selection.policies.window import Window

__all__ = [
    "POLICIES",
    "Drift",
    "Fixed",
    "Mixture",
    "Neighbour",
    "Race",
    "Rounds",
    "Window",
    "parse_policy",
]
