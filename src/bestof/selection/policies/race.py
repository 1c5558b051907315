"""The default policy: alternatives race side by side, and leave once they have lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import truediv

from bestof.selection.policies.argument import check_count, check_names, check_number, check_pairs
from bestof.selection.policies.bound import margins, spare

# The traces and figures below are those of `benchmarks/policies.py`.
#
# A first call is often slow (compilation, cold caches), and any later call may be late. Two late
# calls seldom agree. So an alternative can lose only once its two lowest times lie within this
# factor. A first call that exceeds the lowest time by more than this factor is a slow first, and is
# ignored. The exact value matters little: 1.35 and 1.5 give the same decisions.
AGREE = 1.5

# After two calls, the first may have been slow and the second late by as much. Within AGREE, this
# happens to one alternative in a few hundred, which is once in a trace of a hundred runs. Within
# this factor, it happens a third as often.
ALIKE = 1.1

# An alternative may have a slow first call, and then one of at least this many times the leader's
# time. To be innocent, its second call must be late by this factor, and its first by even more.
# Together with FAR, this saves the third call of alternatives that are far behind: 0.05 of the
# regret of `Rounds` on the recorded traces. At 5 it would save 0.007 more, and two more of 278
# traces would have a wrong run.
HOPELESS = 6.0

# From this factor of the leader's time on, it no longer matters which of the two calls took longer.
FAR = 15.0

# With `costly`: from this factor of the fastest first call on, one call is enough.
COSTLY = 4.0

# From this factor on, drift does not explain a difference, because clock rates vary by up to 1.6.
# The leader's lower median is then a better measure than its call in the same round, which may have
# been its slow first.
BEYOND_DRIFT = 2.0


# From this many rounds on, medians within ALIKE are a near-tie. Selectors around this one need to
# know this: whichever alternative wins, their own times change by less than ALIKE.
_TIE_SHOWS = 5

_SHORT = 8  # rounds of a short race, which verifies a decision


@dataclass(frozen=True, slots=True)
class Race:
    """Calls the alternatives in turn, and drops each one that has proved to be slower than the
    best.

    A race goes round by round: each contender is called once. After a round the race is judged. The
    contender with the lowest median is the leader. A contender that is slower than the leader by
    more than `tie`, at the stated confidence, leaves. The race is over when one contender is left,
    or when those left are a tie. The first of them in the list then wins, so that noise cannot flip
    a near-tie between runs.

    The race is judged after 2, 3, ... 10 rounds, and then whenever the rounds have grown by a
    fifth. The n-th samples of two alternatives were taken side by side, so their ratio is free of
    drift. A contender leaves when enough of its ratios to the leader exceed 1 + `tie`: noise alone
    would do this with a probability of at most 1 - `confidence` (see `bound.py`). Noise makes calls
    late, never early. So a contender stays if its lowest time is within the tie of the leader's
    lowest.

    The contenders are a tie when the first one is within 1 + `tie` of all the others, at the same
    confidence. After `max_trials` rounds, the first one within half the band of the leader wins. A
    near-tie thus goes to the first in the list, in every run and on every rank.

    `hopeless`: an alternative is out after one call if that call takes more than this many times
    the fastest first call. The default, None, gives each one a second call, because a first call
    may contain a compilation. For kernels of a library, which do not compile, 30 saves the second
    call of the slowest ones.

    `costly`: an alternative is out after one call if that call takes at least four times as long as
    the fastest first call, and this many seconds longer. The more a second call would cost, the
    less evidence is needed. The alternative that was called first is spared, because its call may
    contain what the whole process does once. The default, None, gives each one a second call.

    `handicaps`: pairs (name, seconds). Each call of such an alternative is judged as if it took so
    much longer. Use it if the other alternatives, once they have won, are called by a shorter way
    than in a trial.

    Raises InvalidArgument for arguments outside their range.
    """

    tie: float = 0.02
    confidence: float = 0.999
    max_trials: int = 60
    hopeless: float | None = None
    costly: float | None = None
    handicaps: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        check_number("Race", "tie", self.tie, 0.0)
        check_number("Race", "confidence", self.confidence, 0.5, 1.0)
        object.__setattr__(
            self, "max_trials", check_count("Race", "max_trials", self.max_trials, 1)
        )
        if self.hopeless is not None:
            check_number("Race", "hopeless", self.hopeless, 1.0)
        if self.costly is not None:
            check_number("Race", "costly", self.costly, 0.0)
        check_pairs("Race", "handicaps", self.handicaps)
        for name, seconds in self.handicaps:
            check_number("Race", f"handicaps: {name}", seconds, 0.0, inf)

    def shortened(self) -> Race:
        """Return the short race that finds an expected winner wrong by more than the tie."""
        return replace(self, max_trials=min(_SHORT, self.max_trials))

    def start(self, alternatives: Sequence[str]) -> RaceSearch:
        """Begin the search for one problem; at least one name, no name twice."""
        check_names("Race", alternatives)
        handicaps = dict(self.handicaps)
        return RaceSearch(self, [handicaps.get(name, 0.0) for name in alternatives])


class RaceSearch:
    """The search of `Race`.

    Each judgement uses the first samples of each contender, as many as there were rounds. The
    result thus depends on the samples of each alternative in their order, but not on how the
    alternatives took turns. If the same samples are told again, the race takes the same course.
    """

    asks_ahead = True
    __slots__ = (
        *("_contenders", "_handicaps", "_live", "_next"),
        *("_order", "_policy", "_rounds", "_samples", "_turns", "_winner"),
        "near_tie",
    )

    def __init__(self, policy: Race, handicaps: Sequence[float]) -> None:
        self._policy = policy
        self._handicaps = handicaps
        alternatives = len(handicaps)
        self._live = list(range(alternatives))
        self._order: Sequence[int] = self._live  # in which a round calls the contenders
        # The samples that count, in the order taken.
        self._samples: list[list[float]] = [[] for _ in range(alternatives)]
        self._contenders: list[int] = []
        self._turns: list[int] = []  # the contenders, in the order of a round
        self._rounds = 0  # of the judgement to come
        self._next: int | None = None
        self._winner: int | None = None
        self.near_tie = False  # whoever wins, calls take the same time within ALIKE
        self._restart()

    def ask(self) -> int | None:
        """Return the contender with the fewest samples; None once the race is over."""
        self._advance()
        return self._next

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of one call; ignore it after `max_trials` samples of the alternative."""
        assert 0.0 <= seconds < inf, seconds
        seconds += self._handicaps[position]
        samples = self._samples[position]
        if len(samples) < self._policy.max_trials:
            samples.append(seconds)
        self._next = None

    def prefer(self, order: Sequence[int]) -> None:
        """Call the contenders of a round in this order; the decision does not depend on it."""
        self._order = order
        self._turns = [position for position in order if position in self._contenders]
        self._next = None

    def drop(self, position: int) -> None:
        """Take an alternative out for good; judge again those that lost to it.

        If an interrupt stops this method, call it again with the same position.
        """
        self._live = [other for other in self._live if other != position]
        self._restart()

    @property
    def winner(self) -> int | None:
        self._advance()
        return self._winner

    @property
    def best(self) -> int | None:
        """The leader so far; None without any counted sample."""
        self._advance()
        return self._winner if self._winner is not None else self._front()

    def _restart(self) -> None:
        policy = self._policy
        drops_at_once = policy.hopeless is not None or policy.costly is not None
        rounds = min(1 if drops_at_once else 2, policy.max_trials)
        turns = [position for position in self._order if position in self._live]
        winner = self._live[0] if len(self._live) == 1 else None
        # At once: after an interrupt in between, those that lost before would be judged by samples
        # that they have not got.
        self._contenders, self._turns, self._rounds = list(self._live), turns, rounds
        self._winner, self._next, self.near_tie = winner, None, False

    def _advance(self) -> None:
        """Judge as often as the samples allow, and find the next alternative to call."""
        while self._contenders and self._next is None and self._winner is None:
            behind, fewest = None, self._rounds
            for position in self._turns:
                count = len(self._samples[position])
                if count < fewest:
                    behind, fewest = position, count
            if behind is None:
                self._judge()
            else:
                self._next = behind

    def _judge(self) -> None:
        """Drop the losers; end the race, or set the number of rounds of the next judgement."""
        rounds, policy = self._rounds, self._policy
        half = (rounds - 1) // 2  # the lower median
        ranked = {
            position: sorted(self._samples[position][:rounds]) for position in self._contenders
        }
        leader = min(self._contenders, key=lambda position: ranked[position][half])
        usual = ranked[leader][half]
        left = [
            position
            for position in ranked
            if position == leader or not self._lost(position, leader, ranked, usual)
        ]
        if len(left) < len(self._contenders):
            self._turns = [position for position in self._turns if position in left]
        self._contenders = left
        self.near_tie = rounds >= _TIE_SHOWS and all(
            ranked[position][half] <= ALIKE * usual for position in left
        )
        first = left[0]
        if len(left) == 1 or all(self._tied(first, other) for other in left[1:]):
            self._winner = first
        elif rounds == policy.max_trials:
            close = 1.0 + policy.tie / 2
            self._winner = next(
                position
                for position in left
                if position == leader or self._ratios(position, leader, 0)[rounds // 2] <= close
            )
        else:
            self._rounds = min(rounds + max(1, rounds // 5), policy.max_trials)

    def _lost(
        self, position: int, leader: int, ranked: dict[int, list[float]], usual: float
    ) -> bool:
        """Return whether an alternative is slower than the leader by more than the tie.

        `usual` is the lower median of the leader. `ranked` holds the sorted times of each.
        """
        rounds, bar = self._rounds, 1.0 + self._policy.tie
        samples, times = self._samples[position], ranked[position]
        if rounds == 1:
            return self._lost_at_once(position, times[0], usual)
        if times[0] <= bar * ranked[leader][0]:
            return False
        if rounds == 2:
            if times[0] > HOPELESS * usual and (samples[1] <= samples[0] or times[0] > FAR * usual):
                return True
            if times[1] > ALIKE * times[0]:
                return False
        slow = samples[0] > AGREE * times[0]
        clean = sorted(samples[1:rounds]) if slow else times
        if clean[1] > AGREE * clean[0]:
            return False
        ratios = self._ratios(position, leader, int(slow))
        for exceptions, factor in enumerate(margins(len(clean), self._policy.confidence)):
            if (
                ratios[exceptions] > bar * factor
                or clean[exceptions] > max(BEYOND_DRIFT, bar * factor) * usual
            ):
                return True
        return False

    def _lost_at_once(self, position: int, seconds: float, fastest: float) -> bool:
        """Return whether the first call of an alternative is evidence enough against it."""
        hopeless, costly = self._policy.hopeless, self._policy.costly
        if hopeless is not None and seconds > hopeless * fastest:
            return True
        if costly is None or position == self._turns[0]:
            return False
        return seconds >= COSTLY * fastest and seconds - fastest >= costly

    def _tied(self, position: int, other: int) -> bool:
        """Return whether an alternative is at most the tie slower than the other."""
        skipped = int(self._slow_first(position) or self._slow_first(other))
        allowed = spare(self._rounds - skipped, self._policy.confidence)
        if allowed is None:
            return False
        return self._ratios(position, other, skipped)[-1 - allowed] <= 1.0 + self._policy.tie

    def _slow_first(self, position: int) -> bool:
        samples = self._samples[position]
        return samples[0] > AGREE * min(samples[: self._rounds])

    def _ratios(self, position: int, other: int, skipped: int) -> list[float]:
        """Return the sorted ratios of two alternatives' times by round, without the first
        `skipped`."""
        rounds = self._rounds
        tiny = 1e-12  # seconds; a clock may be too coarse to see a call
        divisors = [
            seconds if seconds > tiny else tiny for seconds in self._samples[other][skipped:rounds]
        ]
        return sorted(map(truediv, self._samples[position][skipped:rounds], divisors))

    def _front(self) -> int | None:
        """Return the contender with the lowest lower median so far, or None."""
        front, lowest = None, inf
        for position in self._contenders:
            times = sorted(self._samples[position])
            if times and times[(len(times) - 1) // 2] < lowest:
                front, lowest = position, times[(len(times) - 1) // 2]
        return front
