"""The policy for a problem that resembles a settled one: it verifies the neighbour's decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bestof.selection.policies.argument import check_count, check_names
from bestof.selection.policies.policy import OpenSearch, SearchingPolicy
from bestof.selection.policies.race import Race


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Runs `policy` with the neighbour's `decision` moved to the head of the list.

    The alternative at the head is called first, and wins near-ties. The policy, by default a short
    race, finds out whether it is wrong here. If no alternative has this name, the list keeps its
    order.

    without: names that are not tried, because they were far too slow for the neighbour. They come
        back if all the others are dropped.
    patience: the number of calls that `decision` answers before the policy begins. A rare problem,
        such as the last batch of an epoch, thus uses the neighbour's decision without a search. The
        times of these calls do not count, because no other alternative ran beside them. Stored
        evidence, told before the first ask, counts.
    """

    decision: str
    policy: SearchingPolicy = field(default_factory=lambda: Race(max_trials=8))
    without: frozenset[str] = frozenset()
    patience: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", check_count("Neighbour", "patience", self.patience, 0))

    def start(self, alternatives: Sequence[str]) -> NeighbourSearch:
        """Begin the search of `policy`. Positions are those of `alternatives`."""
        check_names("Neighbour", alternatives)
        order = sorted(
            range(len(alternatives)), key=lambda position: alternatives[position] != self.decision
        )
        names = [alternatives[position] for position in order]
        patience = self.patience if names[0] == self.decision else 0
        left_out = {place for place, name in enumerate(names) if place > 0 and name in self.without}
        return NeighbourSearch(order, self.policy, names, left_out, patience)


class NeighbourSearch:
    """The search of `Neighbour`. It translates positions for the inner search of `policy`."""

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
        self._inner = self._begin(left_out)

    def ask(self) -> int | None:
        """Return `decision` while patience lasts, then what the inner search asks for."""
        self._asked = True
        if self._patience > 0 and self._inner.winner is None:
            return self._outside(0)
        return self._outside(self._inner.ask())

    def tell(self, position: int, seconds: float) -> None:
        """Pass the time on to the inner search, except during patience."""
        if self.ignores:
            self._patience -= 1
        else:
            self._inner.tell(self._places[position], seconds)

    def drop(self, position: int) -> None:
        """Drop an alternative in the inner search too.

        If `decision` is dropped, patience ends. If only names in `without` remain, they come back.
        """
        place = self._places[position]
        self._dropped.add(place)
        if place == 0:
            self._patience = 0
        if self._left_out and len(self._dropped | self._left_out) == len(self._order):
            # At once: an interrupt in between would keep them out for good.
            self._inner, self._left_out = self._begin(set()), set()
        else:
            self._inner.drop(place)

    @property
    def winner(self) -> int | None:
        return self._outside(self._inner.winner)

    @property
    def near_tie(self) -> bool:
        """Whether calls take about the same time whichever alternative wins."""
        return getattr(self._inner, "near_tie", False)

    @property
    def patience(self) -> int:
        """How many more calls `decision` answers."""
        return self._patience

    @property
    def ignores(self) -> bool:
        """Whether times that are told at present do not count."""
        return self._asked and self._patience > 0

    @property
    def left_out(self) -> frozenset[int]:
        """The positions that are not searched."""
        return frozenset(self._order[place] for place in self._left_out)

    @property
    def best(self) -> int | None:
        """The best so far in the inner search, or else the neighbour's decision."""
        best = self._inner.best
        return self._outside(0 if best is None and 0 not in self._dropped else best)

    def _begin(self, left_out: set[int]) -> OpenSearch:
        inner = self._policy.start(self._names)
        for place in sorted(self._dropped | left_out):
            inner.drop(place)
        return inner

    def _outside(self, place: int | None) -> int | None:
        return None if place is None else self._order[place]
