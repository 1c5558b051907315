"""A policy for problems that resemble a settled one: begin with the neighbour's decision, and
verify it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bestof.selection.policies.argument import check_count, check_names
from bestof.selection.policies.race import Race
from bestof.selection.policy import OpenSearch, SearchingPolicy


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Runs `policy` with the alternative `decision` moved to the head of the list, then the others
    in their order.

    So it is called first, and near-ties go to it; the policy, a short race by default, finds out
    where it is wrong. Where no alternative has this name, the list is taken as it is.
    `without`: names that are not tried, as they were hopeless at the neighbour; they come back
    where all others drop.
    `patience`: so many calls are answered by `decision` before the policy begins: what is met now
    and then, as the last batch of an epoch, takes the neighbour's word without a search. Their
    times are no evidence, as nothing ran beside them; stored evidence, told before the first ask,
    counts.
    """

    decision: str
    policy: SearchingPolicy = field(default_factory=lambda: Race(max_trials=8))
    without: frozenset[str] = frozenset()
    patience: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", check_count("Neighbour", "patience", self.patience, 0))

    def start(self, alternatives: Sequence[str]) -> NeighbourSearch:
        """Begin the search of `policy`; positions stay those of `alternatives`."""
        check_names("Neighbour", alternatives)
        order = sorted(
            range(len(alternatives)), key=lambda position: alternatives[position] != self.decision
        )
        names = [alternatives[position] for position in order]
        patience = self.patience if names[0] == self.decision else 0
        left_out = {place for place, name in enumerate(names) if place > 0 and name in self.without}
        return NeighbourSearch(order, self.policy, names, left_out, patience)


class NeighbourSearch:
    """Translates between the positions of the list and those of the search inside."""

    __slots__ = (
        "_asked",
        "_dropped",
        "_inner",
        "_left_out",
        "_names",
        "_order",
        "_patience",
        "_places",
        "_policy",
    )

    def __init__(
        self,
        order: list[int],
        policy: SearchingPolicy,
        names: list[str],
        left_out: set[int],
        patience: int,
    ) -> None:
        self._order = order
        self._places = sorted(range(len(order)), key=order.__getitem__)
        self._policy = policy
        self._names = names
        self._left_out = left_out
        self._dropped: set[int] = set()
        self._patience = patience
        self._asked = False
        self._inner = self._begin()

    def ask(self) -> int | None:
        """The decision while patience lasts; then what the search inside asks for."""
        self._asked = True
        if self._patience > 0 and self._inner.winner is None:
            return self._outside(0)
        return self._outside(self._inner.ask())

    def tell(self, position: int, seconds: float) -> None:
        """Hand the time on, unless nothing ran beside it."""
        if self._asked and self._patience > 0:
            self._patience -= 1
        else:
            self._inner.tell(self._places[position], seconds)

    def drop(self, position: int) -> None:
        """Hand the loss on; the loss of the decision ends patience, that of the last brings back
        who was left out."""
        place = self._places[position]
        self._dropped.add(place)
        if place == 0:
            self._patience = 0
        if self._left_out and len(self._dropped | self._left_out) == len(self._order):
            self._left_out = set()
            self._inner = self._begin()
        else:
            self._inner.drop(place)

    @property
    def winner(self) -> int | None:
        """What the search inside decided."""
        return self._outside(self._inner.winner)

    @property
    def near_tie(self) -> bool:
        """Whether calls take about the same time whoever wins."""
        return getattr(self._inner, "near_tie", False)

    @property
    def patience(self) -> int:
        """How many calls the neighbour's decision still answers."""
        return self._patience

    @property
    def left_out(self) -> frozenset[int]:
        """The positions that are not searched."""
        return frozenset(self._order[place] for place in self._left_out)

    @property
    def best(self) -> int | None:
        """The best so far of the search inside; the neighbour's decision before there is one."""
        best = self._inner.best
        return self._outside(0 if best is None and 0 not in self._dropped else best)

    def _begin(self) -> OpenSearch:
        inner = self._policy.start(self._names)
        for place in sorted(self._dropped | self._left_out):
            inner.drop(place)
        return inner

    def _outside(self, place: int | None) -> int | None:
        return None if place is None else self._order[place]
