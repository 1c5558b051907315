"""The policy for a problem with calls of several kinds: it compares mean times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.selection.policies.argument import check_count, check_names, check_number

_SURE = 6  # rounds, after which alternatives that were always slower are dropped
_FAR = 3.0  # times the leader's mean: slower alternatives are dropped after as many rounds


@dataclass(frozen=True, slots=True)
class Mixture:
    """Calls every alternative `rounds` times and takes the lowest mean. Near-ties go to `decision`.

    `Race` compares the n-th calls of two alternatives, and `Rounds` compares medians. Both mislead
    if calls of two kinds share a problem, such as two batch sizes, because one alternative may get
    all the long calls. So each second round runs in reverse order, and the order is rotated after
    two rounds. If the kinds of calls alternate, every alternative then gets its share. The mean is
    compared, because it counts what all the calls take together. The slowest call of each
    alternative is left out.

    Raises InvalidArgument for arguments outside their range.
    """

    decision: str
    rounds: int = 24
    tie: float = 0.05

    def __post_init__(self) -> None:
        check_count("Mixture", "rounds", self.rounds, 2)
        check_number("Mixture", "tie", self.tie, 0.0)

    def start(self, alternatives: Sequence[str]) -> MixtureSearch:
        """Begin the search for one problem. Names must differ; at least one is needed."""
        check_names("Mixture", alternatives)
        return MixtureSearch(self, list(alternatives))


class MixtureSearch:
    """The search of `Mixture`."""

    asks_ahead = True
    __slots__ = ("_live", "_names", "_policy", "_samples", "_turns")

    def __init__(self, policy: Mixture, names: list[str]) -> None:
        self._policy = policy
        self._names = names
        self._live = list(range(len(names)))
        self._turns = list(self._live)
        self._samples: list[list[float]] = [[] for _ in names]

    def ask(self) -> int | None:
        """Return the next alternative of the round; None once every alternative has its samples."""
        if len(self._live) < 2:
            return None
        counts = {position: len(self._samples[position]) for position in self._live}
        done = min(counts.values())
        if done >= self._policy.rounds:
            return None
        rotation = done // 2 % len(self._turns)
        order = [*self._turns[rotation:], *self._turns[:rotation]]
        for position in reversed(order) if done % 2 else order:
            if counts.get(position) == done:
                return position
        return self._live[0]

    def tell(self, position: int, seconds: float) -> None:
        if len(self._samples[position]) < self._policy.rounds:
            self._samples[position].append(seconds)
        if all(len(self._samples[one]) >= _SURE for one in self._live):
            self._drop_losers()

    def drop(self, position: int) -> None:
        """Take an alternative out for good."""
        self._live = [other for other in self._live if other != position]

    @property
    def winner(self) -> int | None:
        """The winner once nothing is left to ask: the lowest mean, or `decision` within the tie."""
        return None if self.ask() is not None else self.best

    @property
    def best(self) -> int | None:
        """The lowest mean so far; None without any sample."""
        if len(self._live) == 1:
            return self._live[0]
        means = {one: _mean(self._samples[one]) for one in self._live if self._samples[one]}
        if not means:
            return None
        lowest = min(means, key=means.__getitem__)
        for position, mean in means.items():
            if self._names[position] == self._policy.decision:
                near = mean <= (1.0 + self._policy.tie) * means[lowest]
                return position if near else lowest
        return lowest

    def _drop_losers(self) -> None:
        leader = min(self._live, key=lambda one: _mean(self._samples[one]))
        slowest, usual = max(self._samples[leader]), _mean(self._samples[leader])
        self._live = [
            one
            for one in self._live
            if _mean(self._samples[one]) <= (1.0 + self._policy.tie) * usual
            or (min(self._samples[one]) <= slowest and _mean(self._samples[one]) <= _FAR * usual)
        ]


def _mean(samples: Sequence[float]) -> float:
    """Return the mean without the slowest, which may have been interrupted."""
    kept = sorted(samples)[: len(samples) - 1] if len(samples) > 2 else samples
    return sum(kept) / len(kept)
