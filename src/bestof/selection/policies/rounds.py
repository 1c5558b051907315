"""The policy of the BestOf paper: each alternative runs a fixed number of times, slow ones
fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.selection.policies.argument import check_count, check_names, check_number


@dataclass(frozen=True, slots=True)
class Rounds:
    """Calls the alternatives in turn, `rounds` times each. The lowest median wins; ties go to the
    first.

    An alternative is pruned if it has `prune_after_round` samples and its median is more than
    `pruning_speedup` times the lowest median of those with as many samples. If nothing is pruned,
    `n` alternatives settle after exactly `rounds * n` calls. Samples told in advance count, so a
    new alternative measures only itself.

    Source: Barrachina et al., BestOf, with the median in place of the mean.

    Raises InvalidArgument if `rounds` or `prune_after_round` is below 1, or if `pruning_speedup` is
    below 1 (infinity: never prune).
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
        """Begin the search for one problem. Names must differ; at least one is needed."""
        check_names("Rounds", alternatives)
        return RoundsSearch(self, len(alternatives))


class RoundsSearch:
    """The search of `Rounds`.

    Its answers depend only on the samples and the drops, whatever their order. A pruned alternative
    comes back if the best one loses its lead or is dropped.
    """

    asks_ahead = True
    __slots__ = ("_current", "_live", "_medians", "_next", "_policy", "_samples", "_turns")

    def __init__(self, policy: Rounds, alternatives: int) -> None:
        self._policy = policy
        self._live = list(range(alternatives))
        self._turns = self._live  # the same, in the order of a round
        self._samples: list[list[float]] = [[] for _ in range(alternatives)]  # each sorted
        self._medians = [0.0] * alternatives
        self._next: int | None = None
        self._current = False  # whether _next is still valid

    def ask(self) -> int | None:
        """Return the one with the fewest samples, of those that are neither dropped nor pruned.

        Of equals, the first.
        """
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
        """Take the time of one call. Samples beyond `rounds` of one alternative are ignored."""
        assert 0.0 <= seconds < float("inf"), seconds
        if len(self._samples[position]) < self._policy.rounds:
            self._current = False
            ranked = sorted((*self._samples[position], seconds))
            half = len(ranked) // 2
            median = ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
            # An interrupt may come between the two: a sample without its median would win by 0.
            self._medians[position] = median
            self._samples[position] = ranked

    def drop(self, position: int) -> None:
        """Take an alternative out for good. Dropping it twice is the same as once."""
        self._current = False
        self._live = [other for other in self._live if other != position]
        self._turns = [other for other in self._turns if other != position]

    def prefer(self, order: Sequence[int]) -> None:
        """Call the alternatives of a round in this order. The decision does not depend on it."""
        self._current = False
        self._turns = [position for position in order if position in self._live]

    @property
    def winner(self) -> int | None:
        """The lowest median once nothing is left to ask."""
        return None if self.ask() is not None else self.best

    @property
    def best(self) -> int | None:
        """The lowest median so far, of equals the first. None without any sample."""
        sampled = [position for position in self._live if self._samples[position]]
        return min(sampled, key=self._medians.__getitem__, default=None)

    def _bar(self) -> float:
        """Return the median above which an alternative with enough samples is pruned."""
        enough = self._policy.prune_after_round
        lowest = float("inf")
        for position in self._live:
            if len(self._samples[position]) >= enough and self._medians[position] < lowest:
                lowest = self._medians[position]
        return lowest * self._policy.pruning_speedup
