"""A search that follows the script of all ranks.

It contains the policy's own search, which takes the times of this rank and says what the next entry
should be. At the end of the script, this rank proposes that entry. The log decides which rank's
proposal becomes the entry. Until then, calls go to the best alternative of the last entry, and
before the first entry to the first alternative. So nothing waits.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

from bestof.selection.policy import OpenSearch, SearchingPolicy
from bestof.torch.ranks.entry import Entry

MOST_TRIES = 32
"""Trials of one entry. More would be decided on times that are too old."""

LOCKSTEP = 1
"""Ranks that train together are at most so many steps apart. If an entry was written further ahead
of this rank's steps, this rank began late: the entry holds at once."""

WAIT = 64
"""Calls after which an entry holds although its step has not come: an evaluation counts no
steps."""

_MARKS = 256

ENOUGH = 3
"""Times of the agreed alternative on this rank, before the decision is final here: drift is judged
by them."""

_ENOUGH_CALLS = 16
"""Calls after which it is final in any case: not every call's time counts."""


class Script(Protocol):
    """The entries of one problem so far, and where to propose the next one."""

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries that this rank has read, oldest first. Another thread may append."""

    @property
    def broken(self) -> bool:
        """Whether the log can no longer be reached."""

    def propose(self, entry: Entry) -> None:
        """Offer an entry for the place after the last one that this rank has read."""

    def ahead(self) -> int:
        """Return how many steps pass until all ranks have read what is published now."""


class AgreedSearch:
    """The search for one problem on one rank."""

    def __init__(
        self,
        own: OpenSearch,
        names: Sequence[str],
        script: Script,
        step: Callable[[], int],
    ) -> None:
        self._own = own
        self._names = list(names)
        self._places = {name: place for place, name in enumerate(names)}
        self._script = script
        self._step = step
        self._dropped: set[int] = set()
        self._times: dict[int, list[float]] = {}
        # calls in this entry that were asked for but not told yet
        self._under_way: Counter[int] = Counter()
        self._calls = 0
        self._marks: list[
            tuple[int, int]
        ] = []  # steps, and the calls before the first call in each
        self._seen: list[int] = []  # for each entry, the number of calls before this rank knew it
        self._winner: int | None = None
        self._winner_calls = 0

    def ask(self) -> int | None:
        """Return the position to call next. Each question counts as one call of the script."""
        if self._alone():
            return self._own.ask()
        step = self._step()
        if not self._marks or self._marks[-1][0] != step:
            self._marks.append((step, self._calls))
            del self._marks[:-_MARKS]
        position = self._by_script(step)
        self._calls += 1
        self._under_way[position] += 1
        return position

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of one call on this rank."""
        if self._under_way[position] > 0:
            self._under_way[position] -= 1
        self._times.setdefault(position, []).append(seconds)
        self._own.tell(position, seconds)

    def drop(self, position: int) -> None:
        """Take an alternative out on this rank, whatever the script says."""
        self._dropped.add(position)
        self._own.drop(position)

    @property
    def winner(self) -> int | None:
        """The agreed decision once its step has come. Alone, this rank's own decision."""
        if self._alone():
            return self._own.winner
        if self._winner is None:
            return None
        enough = len(self._times.get(self._winner, ())) >= ENOUGH
        return self._winner if enough or self._winner_calls >= _ENOUGH_CALLS else None

    @property
    def best(self) -> int | None:
        """The best alternative so far, by the times of this rank."""
        best: int | None = getattr(self._own, "best", None)  # not every search has it
        return best

    @property
    def left_out(self) -> Sequence[int]:
        """The positions that the own search leaves out."""
        found: Sequence[int] = getattr(self._own, "left_out", ())
        return found

    def _alone(self) -> bool:
        """Return whether this rank decides alone: without a log, or if it cannot run what was
        agreed."""
        return self._script.broken or self._winner in self._dropped

    def _by_script(self, step: int) -> int:
        entries = self._script.entries
        if len(entries) > len(self._seen):
            self._seen += [self._calls] * (len(entries) - len(self._seen))
            self._under_way.clear()
        entry, begin = None, 0
        for place in reversed(range(len(self._seen))):
            found = self._begin(entries[place], self._seen[place], step)
            if found is not None:
                entry, begin = entries[place], found
                break
        if entry is None:
            if not entries:
                self._propose(step)
            return self._usable(None)
        if entry.decided:
            self._winner = self._usable(entry.best)
            self._winner_calls += 1
            return self._winner
        past = self._calls - begin
        tries = [self._places[name] for name in entry.tries if name in self._places]
        if past < len(tries):
            return self._usable(self._names[tries[past]], entry.best)
        if entry is entries[-1]:
            self._propose(step)
        return self._usable(entry.best)

    def _begin(self, entry: Entry, seen: int, step: int) -> int | None:
        """Return the call of this rank at which the entry begins to hold; None if it does not
        yet."""
        if entry.step <= step:
            # The entry was written without a step ahead, so ranks have no common beginning.
            return self._calls_before(entry.step) if entry.step > entry.written else seen
        if entry.written > step + LOCKSTEP:
            return seen
        return seen + WAIT if self._calls >= seen + WAIT else None

    def _usable(self, *names: str | None) -> int:
        """Return the first of these alternatives that this rank can run, or else its first one."""
        for name in names:
            place = None if name is None else self._places.get(name)
            if place is not None and place not in self._dropped:
                return place
        return next(place for place in range(len(self._names)) if place not in self._dropped)

    def _calls_before(self, step: int) -> int:
        """Return how many calls there were before the first call in this step or a later one."""
        return next((calls for marked, calls in self._marks if marked >= step), self._calls)

    def _propose(self, step: int) -> None:
        winner, ahead = self._own.winner, step + self._script.ahead()
        if winner is not None:
            self._script.propose(Entry(step, ahead, (), self._names[winner], decided=True))
            return
        best = self.best
        tries = tuple(self._names[position] for position in self._expected())
        leader = self._names[self._usable(None) if best is None else best]
        self._script.propose(Entry(step, ahead, tries, leader))

    def _expected(self) -> list[int]:
        """Return what the own search will ask for next if times stay as they were."""
        search = copy.deepcopy(self._own)
        asked: list[int] = []
        for place, count in self._under_way.items():
            for _ in range(min(count, MOST_TRIES)):
                search.tell(place, self._like(place))
        rounds: Counter[int] = Counter()
        while len(asked) < MOST_TRIES:
            position = search.ask()
            if position is None or rounds[position] == 2:
                break  # two rounds, after which alternatives that are far slower leave
            rounds[position] += 1
            asked.append(position)
            search.tell(position, self._like(position))
            if search.winner is not None:
                break
        return asked

    def _like(self, position: int) -> float:
        """Return a time like those of this alternative, or of all alternatives if it has none."""
        times = self._times.get(position) or [one for few in self._times.values() for one in few]
        return median(times) if times else 1.0


class AgreedPolicy:
    """Makes searches that follow a script, around those of another policy."""

    def __init__(self, policy: SearchingPolicy, script: Script, step: Callable[[], int]) -> None:
        self._policy = policy
        self._script = script
        self._step = step

    def start(self, alternatives: Sequence[str]) -> AgreedSearch:
        """Begin the search of one problem."""
        return AgreedSearch(
            self._policy.start(alternatives), alternatives, self._script, self._step
        )
