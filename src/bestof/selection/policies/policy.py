"""The protocol of a policy: which alternative to try next, and when to stop.

A policy asks and tells. It uses no clock, no input or output, and no randomness of its own. So any
run can be replayed from its recorded times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard


class Search(Protocol):
    """The state of a policy for one problem.

    Alternatives are positions in the list that `start` was given.

    Six members are optional. `asks_ahead`: true if the answer of `ask` does not depend on when
    it is asked. Then `ask` is called right after `tell`, which makes the next trial cheaper.
    `prefer(order)`: called before the first `ask` with every position, the one that is expected to
    be fastest first. `near_tie`: true once calls take about the same time whichever alternative
    wins. Then a selector around this one counts its own trials before this search is over.
    `favour(position)`: called before the first `ask` with the decision of an earlier run, if the
    search decides together with others. Without this member, the problem begins settled.
    `source`: where the decision comes from, in one word, if it comes from something other than
    trials; else None. `ignores`: true while times that are told do not count. They are no evidence
    for later runs either.
    """

    def ask(self) -> int | None:
        """Return the position to call next, or None if there is a winner or none is left.

        The answer depends only on what was told and dropped.
        """

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of one call.

        Recorded evidence is told in the same way, in any order. Dropped alternatives are ignored.
        """

    def drop(self, position: int) -> None:
        """Take an alternative out for good: it does not apply, raised, or was wrong."""

    @property
    def winner(self) -> int | None:
        """The winner's position; None during the search, or if every alternative was dropped."""


class Policy(Protocol):
    """Makes a search for each problem that a selector meets.

    A policy may have three attributes, which the functions below read. `always`: the name of the
    one alternative that it takes. `at_any_time`: false if it searches at its own time only; its
    decisions are then never searched again. `shortened()`: returns the policy that verifies an
    expected winner.
    """

    def start(self, alternatives: Sequence[str]) -> Search:
        """Begin the search for one problem. The names keep the order in which the user listed
        them."""


class OpenSearch(Search, Protocol):
    """A search that can be cut short. Every search of this project is one."""

    @property
    def best(self) -> int | None:
        """The decision, or before it the best so far; None if no sample counted."""


class SearchingPolicy(Protocol):
    """A policy whose searches can be cut short. Policies that wrap another one need this."""

    def start(self, alternatives: Sequence[str]) -> OpenSearch:
        """Begin the search for one problem. The names keep the order in which the user listed
        them."""


class Shortened(Protocol):
    """A policy that has a short form."""

    def shortened(self) -> SearchingPolicy:
        """Return the policy that verifies an expected winner in fewer trials."""


def always(policy: object) -> str | None:
    """Return the one alternative that a policy always takes, or None if the policy searches."""
    return getattr(policy, "always", None)


def searches_at_any_time(policy: Policy) -> TypeGuard[SearchingPolicy]:
    """Return whether a decision of this policy may be searched again."""
    return bool(getattr(policy, "at_any_time", True))


def has_short_form(policy: Policy) -> TypeGuard[Shortened]:
    """Return whether a policy has a short form, for problems that resemble a settled one."""
    return callable(getattr(policy, "shortened", None))
