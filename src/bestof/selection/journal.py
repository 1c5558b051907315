"""The record of trials and decisions that reports and plots are made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from bestof.selection.notice import warn


class TrialEntry(NamedTuple):
    """One timed call. `counted` is false for a trial inside which an unsettled choice was met."""

    problem: Hashable
    alternative: str
    stage: int
    seconds: float
    counted: bool


class DecisionEntry(NamedTuple):
    """One decision. `source`: measured, stored, forced (by its policy), or only (nothing else
    applied)."""

    problem: Hashable
    alternative: str
    source: str


class DisqualificationEntry(NamedTuple):
    """One alternative taken out for one problem, and why."""

    problem: Hashable
    alternative: str
    reason: str


class DriftEntry(NamedTuple):
    """One race that is run again: the winner took `before` seconds when it won, and `after` when it
    was sampled."""

    problem: Hashable
    alternative: str
    before: float
    after: float


Entry = TrialEntry | DecisionEntry | DisqualificationEntry | DriftEntry
_Rare = DecisionEntry | DisqualificationEntry | DriftEntry


_Trial = tuple[Hashable, str, int, float, bool]  # the fields of a TrialEntry


class Journal:
    """What a selector did, oldest first; bounded: the oldest entries leave first.

    Trials are kept as plain tuples until somebody reads them: to make a TrialEntry takes 0.2 us of
    each trial.

    `listener` is told every entry, in order, once its selector lets go of its lock and calls
    `deliver`. What it raises is warned of once, and never reaches the caller of the selector.
    """

    __slots__ = ("_entries", "_listener", "_warned", "add_trial", "undelivered")

    def __init__(
        self, limit: int = 16384, listener: Callable[[Entry], object] | None = None
    ) -> None:
        self._entries: deque[_Rare | _Trial] = deque(maxlen=limit)
        self._listener = listener
        self._warned = False
        self.undelivered: deque[Entry] = deque()
        # Takes the fields of a TrialEntry as a tuple. Where nobody listens it is no function of
        # Python, which costs.
        entries, undelivered = self._entries, self.undelivered

        def tell(trial: _Trial) -> None:
            entries.append(trial)
            undelivered.append(TrialEntry(*trial))

        self.add_trial: Callable[[_Trial], object] = entries.append if listener is None else tell

    def add(self, entry: _Rare) -> None:
        """Append an entry."""
        self._entries.append(entry)
        if self._listener is not None:
            self.undelivered.append(entry)

    def deliver(self) -> None:
        """Tell the listener what it has not heard of. Not to be called with a lock held."""
        listener = self._listener
        while self.undelivered and listener is not None:
            try:
                entry = self.undelivered.popleft()
            except IndexError:  # another thread delivered it
                return
            try:
                listener(entry)
            except Exception as error:
                if not self._warned:
                    self._warned = True
                    warn(
                        f"on_event raised {type(error).__name__}: {error}; later errors of it "
                        "are passed over"
                    )

    def entries(self) -> tuple[Entry, ...]:
        """A copy, oldest first."""
        return tuple(map(_entry, self._entries.copy()))


def _entry(kept: _Rare | _Trial) -> Entry:
    return kept if isinstance(kept, _Rare) else TrialEntry(*kept)
