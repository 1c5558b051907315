"""The policy of the BestOf paper: every alternative a fixed number of times, hopeless ones
fewer."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from bestof.selection.policies.argument import check_count, check_names, check_number


@dataclass(frozen=True, slots=True)
class Rounds:
    """Calls the alternatives in turn, `rounds` times each; the lowest median wins, equal medians go
    to the first.

    Once an alternative has `prune_after_round` samples, it is pruned while its median is more than
    `pruning_speedup` times the lowest median of those that have as many. `n` alternatives settle
    after exactly `rounds * n` calls when nothing is pruned. Samples told in advance count, so a new
    alternative measures only itself.
    Source: Barrachina et al., BestOf, with the median in place of the mean.
    Raises InvalidArgument: `rounds`, `prune_after_round` below 1; `pruning_speedup` below 1
    (infinity: never prune).
    """

    rounds: int = 10
    pruning_speedup: float = 10.0
    prune_after_round: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", check_count("Rounds", "rounds", self.rounds, 1))
        check_number("Rounds", "pruning_speedup", self.pruning_speedup, 1.0)
        object.__setattr__(
            self,
            "prune_after_round",
            check_count("Rounds", "prune_after_round", self.prune_after_round, 1),
        )

    def start(self, alternatives: Sequence[str]) -> RoundsSearch:
        """Begin the search for one problem; at least one name, no name twice."""
        check_names("Rounds", alternatives)
        return RoundsSearch(self, len(alternatives))


class RoundsSearch:
    """The search of `Rounds`: what it answers is a function of the samples and the drops, in
    whatever order told.

    Nothing is pruned for good: should the best lose its lead, or be dropped, whoever it pruned
    comes back.
    """

    asks_ahead = True
    __slots__ = ("_current", "_live", "_medians", "_next", "_policy", "_samples", "_turns")

    def __init__(self, policy: Rounds, alternatives: int) -> None:
        self._policy = policy
        self._live = list(range(alternatives))
        self._turns = self._live  # the same in the order in which a round calls them
        self._samples: list[list[float]] = [[] for _ in range(alternatives)]  # each sorted
        self._medians = [0.0] * alternatives
        self._next: int | None = None
        self._current = False  # whether _next still answers what was told

    def ask(self) -> int | None:
        """The one with the fewest samples among those neither dropped nor pruned, the first of
        equals."""
        if not self._current:
            chosen, fewest, enough = None, self._policy.rounds, self._policy.prune_after_round
            bar = self._bar()
            for position in self._turns:
                count = len(self._samples[position])
                if count < fewest and not (count >= enough and self._medians[position] > bar):
                    chosen, fewest = position, count
            self._next, self._current = chosen, True
        return self._next

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of one call; what exceeds `rounds` samples of one alternative is
        ignored."""
        assert 0.0 <= seconds < float("inf"), seconds
        ranked = self._samples[position]
        if len(ranked) < self._policy.rounds:
            self._current = False
            insort(ranked, seconds)
            half = len(ranked) // 2
            self._medians[position] = (
                ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
            )

    def drop(self, position: int) -> None:
        """Take an alternative out for good; dropping it again changes nothing."""
        self._current = False
        self._live = [other for other in self._live if other != position]
        self._turns = [other for other in self._turns if other != position]

    def prefer(self, order: Sequence[int]) -> None:
        """Call the alternatives of a round in this order; what is decided does not depend on it."""
        self._current = False
        self._turns = [position for position in order if position in self._live]

    @property
    def winner(self) -> int | None:
        """The lowest median once nothing is left to ask."""
        return None if self.ask() is not None else self.best

    @property
    def best(self) -> int | None:
        """The lowest median so far among those with a sample, the first of equals; None without any
        sample."""
        sampled = [position for position in self._live if self._samples[position]]
        return min(sampled, key=self._medians.__getitem__, default=None)

    def _bar(self) -> float:
        """The median above which an alternative with enough samples is pruned."""
        enough = self._policy.prune_after_round
        lowest = float("inf")
        for position in self._live:
            if len(self._samples[position]) >= enough and self._medians[position] < lowest:
                lowest = self._medians[position]
        return lowest * self._policy.pruning_speedup
