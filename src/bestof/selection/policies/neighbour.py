"""A policy for problems that resemble a settled one: begin with the neighbour's decision, and verify it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bestof.selection.policies.argument import check_names
from bestof.selection.policies.race import Race
from bestof.selection.policy import OpenSearch, SearchingPolicy


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Runs `policy` with the alternative `decision` moved to the head of the list, then the others in their order.

    So it is called first, and near-ties go to it; the policy, a short race by default, finds out where it is wrong.
    Where no alternative has this name, the list is taken as it is. For a problem that is met once, `Fixed(decision)`
    takes the neighbour's word without a search.
    """

    decision: str
    policy: SearchingPolicy = field(default_factory=lambda: Race(max_trials=8))

    def start(self, alternatives: Sequence[str]) -> NeighbourSearch:
        """Begin the search of `policy`; positions stay those of `alternatives`."""
        check_names("Neighbour", alternatives)
        order = sorted(range(len(alternatives)), key=lambda position: alternatives[position] != self.decision)
        return NeighbourSearch(order, self.policy.start([alternatives[position] for position in order]))


class NeighbourSearch:
    """Translates between the positions of the list and those of the search inside."""

    __slots__ = ("_inner", "_order", "_places")

    def __init__(self, order: list[int], inner: OpenSearch) -> None:
        self._order = order
        self._places = sorted(range(len(order)), key=order.__getitem__)
        self._inner = inner

    def ask(self) -> int | None:
        """What the search inside asks for."""
        return self._outside(self._inner.ask())

    def tell(self, position: int, seconds: float) -> None:
        """Hand the time on."""
        self._inner.tell(self._places[position], seconds)

    def drop(self, position: int) -> None:
        """Hand the loss on."""
        self._inner.drop(self._places[position])

    @property
    def winner(self) -> int | None:
        """What the search inside decided."""
        return self._outside(self._inner.winner)

    @property
    def best(self) -> int | None:
        """The best so far of the search inside."""
        return self._outside(self._inner.best)

    def _outside(self, place: int | None) -> int | None:
        return None if place is None else self._order[place]
