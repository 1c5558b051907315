"""The policies: each decides which alternative to try next, and when to stop."""

from bestof.selection.policies.rounds import Rounds

__all__ = ["Rounds"]
