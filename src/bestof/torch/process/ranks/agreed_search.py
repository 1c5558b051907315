"""A search that follows the log of all ranks."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from bestof.selection.policies.policy import OpenSearch, SearchingPolicy
from bestof.torch.process.ranks.entry import DECIDE, REOPEN, TRY, Entry
from bestof.torch.process.ranks.problem_log import ProblemLog

MOST_TRIES = 32
"""Trials of one entry. More would be decided on times that are too old."""

LOCKSTEP = 1
"""Ranks that train together are at most so many steps apart. If an entry was written further ahead
of this rank's steps, this rank began late: the entry holds at once."""

WAIT = 64
"""Calls after which an entry holds although its step has not come: an evaluation counts no
steps."""

AHEAD_CALLS = 2
"""If no steps are counted, an entry holds from so many calls of its writer on."""

ENOUGH = 3
"""Times of the agreed alternative on this rank, before the decision is final here: drift is judged
by them."""

_ENOUGH_CALLS = 16
"""Calls after which it is final in any case: not every call's time counts."""

_MARKS = 256
_MOST_REST = 10  # doublings of the pause after entries that gave no time


class AgreedSearch:
    """The search for one problem on one rank.

    A search inside, that of the program's policy, takes the times of this rank. It only says which
    entry to offer next. When the tries of an entry have been made, calls go to the best alternative
    of the last entry that was read. Before the first entry holds, they go to the first alternative.

    `reopens`: this rank withdraws the last decision. All calls hold the selector's lock.
    """

    def __init__(
        self,
        policy: SearchingPolicy,
        names: Sequence[str],
        log: ProblemLog,
        step: Callable[[], int],
        reopens: bool = False,
    ) -> None:
        self._policy = policy
        self._own = policy.start(names)
        self._names = list(names)
        self._places = {name: place for place, name in enumerate(names)}
        self._log = log
        self._step = step
        read = list(log.entries)
        self._reopens = reopens and bool(read) and read[-1].kind == DECIDE
        self._begin = len(read) if self._reopens else 0  # entries before are another race's
        self._dropped: set[int] = set()
        self._times: dict[int, list[float]] = {}
        self._under_way: Counter[int] = Counter()  # asked for in this entry, and not told yet
        self._calls = 0
        self._marks: list[tuple[int, int]] = []  # steps, and the calls before the first call in it
        self._seen: list[tuple[int, int]] = []  # calls and steps when each entry had been read
        self._barren, self._news = 0, False  # entries in a row that gave no time
        self._place: int | None = None  # the entry that holds
        self._first = 0  # the call with which it began to hold
        self._on_time = False  # whether this rank had read it before that
        self._favourite: int | None = None  # the decision of an earlier run
        self._winner: int | None = None
        self._winner_calls = 0
        self._alone_since: int | None = None  # the first entry of the race that was decided alone

    def ask(self) -> int | None:
        """Return whom to call next. Every question counts as a call: entries are written for
        calls."""
        self._read()
        if self._alone():
            return self._own.ask()
        step = self._step()
        if not self._marks or self._marks[-1][0] != step:
            self._marks.append((step, self._calls))
            del self._marks[:-_MARKS]
        position = self._by_log(step)
        self._calls += 1
        self._log.count_call(step)
        self._under_way[position] += 1
        own = self._own.ask() if self._alone() else None
        return position if own is None else own

    def tell(self, position: int, seconds: float) -> None:
        """Take the time of one call on this rank."""
        if self._under_way[position] > 0:
            self._under_way[position] -= 1
        self._news = True
        self._times.setdefault(position, []).append(seconds)
        self._own.tell(position, seconds)

    def drop(self, position: int) -> None:
        """Take an alternative out on this rank, whatever the log says."""
        self._dropped.add(position)
        self._own.drop(position)
        if self._favourite == position:
            self._favourite = None

    def prefer(self, order: Sequence[int]) -> None:
        """Set the order of the first round that this rank offers."""
        prefer = getattr(self._own, "prefer", None)
        if prefer is not None:
            prefer(order)

    def favour(self, position: int) -> None:
        """Offer this alternative as the decision: an earlier run has decided for it."""
        if not self._log.entries:
            self._favourite = position

    @property
    def winner(self) -> int | None:
        """Return the agreed decision once it holds, or this rank's own if it is alone."""
        self._read()
        if self._alone():
            return self._own.winner
        if self._winner is None:
            return None
        enough = len(self._times.get(self._winner, ())) >= ENOUGH
        return self._winner if enough or self._winner_calls >= _ENOUGH_CALLS else None

    @property
    def best(self) -> int | None:
        """Return the best alternative so far, by the times of this rank."""
        best: int | None = getattr(self._own, "best", None)  # not every search tells
        return best

    @property
    def near_tie(self) -> bool:
        """Return whether calls take about the same time whichever alternative wins."""
        return bool(getattr(self._own, "near_tie", False))

    @property
    def left_out(self) -> Sequence[int]:
        """Return what the own search knows of and leaves out."""
        found: Sequence[int] = getattr(self._own, "left_out", ())
        return found

    @property
    def waits_for(self) -> str | None:
        """Return what the decision waits for, in words; None if this rank decides alone."""
        if self._alone():
            return None
        return (
            "the ranks of the job decide together; each reads what the others write at most 100 "
            "times a second, so a decision takes some tenths of a second, whatever a call takes"
        )

    def _alone(self) -> bool:
        """Return whether this rank decides for itself: without a log, or if it cannot run what was
        decided."""
        return self._log.broken or self._alone_since == self._begin

    def _read(self) -> None:
        """Take note of new entries. Behind a REOPEN this rank's own search begins anew too."""
        entries = self._log.entries
        while len(self._seen) < len(entries):
            place = len(self._seen)
            self._seen.append((self._calls, self._step()))
            self._under_way.clear()
            if entries[place].kind == REOPEN and place >= self._begin:
                self._begin, self._reopens = place + 1, False
                self._place = None
                self._winner, self._winner_calls = None, 0
                self._favourite = None
                if self._calls:
                    self._times.clear()
                    self._own = self._policy.start(self._names)
                    for position in self._dropped:
                        self._own.drop(position)

    def _by_log(self, step: int) -> int:
        entries = self._log.entries
        read = len(self._seen)
        self._follow(step)
        place = self._place
        if place is None:
            if read == self._begin:
                self._offer(read, step)
            return self._before()
        entry = entries[place]
        if entry.kind == DECIDE:
            return self._decided(entry)
        past = self._calls - self._first
        if place == read - 1 and self._time_to_offer(past, len(entry.tries)):
            self._offer(read, step, entry.tries[past:])
        if past < len(entry.tries):
            return self._usable(entry.tries[past], entry.best)
        # Entries that do not hold yet know better which alternative is best.
        return self._usable(entries[read - 1].best, entry.best)

    def _follow(self, step: int) -> None:
        """Go to the entry that holds for this call.

        Entries hold in the order of the log, and none before the tries of the one before have been
        made. Else ranks that are not in step could replace each other's entries without end. Only a
        decision holds in spite of other entries. A rank that has read late skips the tries that it
        has missed. If it has missed all tries of the last entry, it makes them now: else nobody
        might make them.
        """
        entries, read = self._log.entries, len(self._seen)
        while True:
            place = self._begin if self._place is None else self._place + 1
            if place >= read:
                return
            if entries[read - 1].kind == DECIDE and self._first_call(read - 1, step) is not None:
                self._place = read - 1
                return
            tries = () if self._place is None else entries[self._place].tries
            if tries and self._calls < self._first + len(tries):
                return
            first = self._first_call(place, step)
            if first is None:
                return
            missed = first + len(entries[place].tries) <= self._calls
            in_step = not missed and not self._far_ahead(place)
            self._on_time = in_step and first >= self._seen[place][0]
            self._first = self._calls if missed and place == read - 1 else first
            self._place = place

    def _first_call(self, place: int, step: int) -> int | None:
        """Return with which call of this rank an entry begins to hold; None while it does not."""
        entry = self._log.entries[place]
        seen = self._seen[place][0]
        if self._far_ahead(place):
            return seen
        if entry.step <= entry.written:  # no steps were counted
            return entry.call if entry.call <= self._calls else None
        if entry.step <= step:
            return self._calls_before(entry.step)
        return seen + WAIT if self._calls >= seen + WAIT else None

    def _far_ahead(self, place: int) -> bool:
        """Return whether the entry was written far ahead of this rank, which then began late."""
        entry = self._log.entries[place]
        seen, then = self._seen[place]  # it was read before the call `seen`, in the step `then`
        if entry.step <= entry.written:
            return entry.call > seen + WAIT
        return entry.written > then + LOCKSTEP

    def _before(self) -> int:
        """Return the alternative while no entry of this race holds."""
        if self._begin > 0:
            named = [e.best for e in self._log.entries[: self._begin] if e.kind != REOPEN]
            return self._usable(*named[-1:])
        return self._usable() if self._favourite is None else self._favourite

    def _decided(self, entry: Entry) -> int:
        place = self._places.get(entry.best)
        if place is None or place in self._dropped:
            self._alone_since = self._begin
            return self._usable()
        self._winner = place
        self._winner_calls += 1
        return place

    def _usable(self, *names: str) -> int:
        """Return the first of these alternatives that this rank can run, or else its first one."""
        for name in names:
            place = self._places.get(name)
            if place is not None and place not in self._dropped:
                return place
        return next(place for place in range(len(self._names)) if place not in self._dropped)

    def _calls_before(self, step: int) -> int:
        """Return how many calls there were before the first call in this step or a later one."""
        return next((calls for marked, calls in self._marks if marked >= step), self._calls)

    def _time_to_offer(self, past: int, tries: int) -> bool:
        """Return whether to offer the entry behind one of so many tries, `past` of them made.

        It is offered so early that it holds when these tries have been made. Else ranks would wait
        for it: in 1,056 of 2,765 calls of VGG16 on four ranks. A rank that has not read the
        present entry on time is not in step, and does not know when others have made the tries.

        Times may not count for long, as in an evaluation whose backward passes never come. Each
        entry that gave none doubles the pause before the next one.
        """
        if not self._news:
            return past >= max(1, tries) << self._barren
        if past >= tries or not self._on_time:
            return past >= tries
        if self._own.winner is not None:
            return True
        ahead = self._log.ahead()
        begin, calls = self._marks[-1][1], self._calls_a_step()
        holds = begin + ahead * calls if ahead else self._calls + AHEAD_CALLS
        return self._calls - past + tries <= holds

    def _calls_a_step(self) -> int:
        """Return how many calls the last whole step made."""
        if len(self._marks) < 2:
            return 1
        (before, calls), (step, later) = self._marks[-2:]
        return max(1, (later - calls) // (step - before))

    def _offer(self, place: int, step: int, left: Sequence[str] = ()) -> None:
        """Offer the entry behind one whose tries `left` are still to be made."""
        if self._log.offered() is not None:
            return
        ahead, call = step + self._log.ahead(), self._calls + AHEAD_CALLS
        if self._reopens:
            self._log.offer(place, Entry(REOPEN, step, step, call))
            return
        winner = self._own.winner if self._favourite is None else self._favourite
        if winner is not None:
            self._log.offer(place, Entry(DECIDE, step, ahead, call, (), self._names[winner]))
            return
        expected = self._expected(left)
        if left and not expected:
            return  # these tries are likely to decide
        self._barren = 0 if self._news else min(self._barren + 1, _MOST_REST)
        self._news = False
        best = self.best
        tries = tuple(self._names[position] for position in expected)
        leader = self._names[self._usable() if best is None else best]
        self._log.offer(place, Entry(TRY, step, ahead, call, tries, leader))

    def _expected(self, left: Sequence[str]) -> list[int]:
        """Return what the own search asks for next, if further times are like those before.

        left: what is called before that. In a near-tie, those that are left go on until a rank has
        decided: further tries cost nothing there, and to wait for a decision makes tuning longer.
        """
        search: OpenSearch = copy.deepcopy(self._own)
        asked: list[int] = []
        coming = Counter(self._usable(name) for name in left)
        for place, count in (self._under_way + coming).items():
            for _ in range(min(count, MOST_TRIES)):
                search.tell(place, self._like(place))
        rounds: Counter[int] = Counter()
        while len(asked) < MOST_TRIES:
            position = search.ask()
            if position is None or rounds[position] == 2:
                break  # two rounds: what was slower by far leaves then
            rounds[position] += 1
            asked.append(position)
            search.tell(position, self._like(position))
            if search.winner is not None:
                break
        if self.near_tie:
            rounds_on = list(dict.fromkeys(asked or coming))
            asked = rounds_on * (MOST_TRIES // max(1, len(rounds_on)))
        return asked

    def _like(self, position: int) -> float:
        """Return a time like those of this alternative, or like those of all if it has none."""
        times = self._times.get(position) or [one for few in self._times.values() for one in few]
        return median(times) if times else 1.0


class AgreedPolicy:
    """Makes searches that follow the log of a problem, around those of another policy."""

    def __init__(
        self,
        policy: SearchingPolicy,
        log: ProblemLog,
        step: Callable[[], int],
        reopens: bool = False,
    ) -> None:
        self._policy = policy
        self._log = log
        self._step = step
        self._reopens = reopens

    def start(self, alternatives: Sequence[str]) -> AgreedSearch:
        """Begin the search of one problem."""
        return AgreedSearch(self._policy, alternatives, self._log, self._step, self._reopens)
