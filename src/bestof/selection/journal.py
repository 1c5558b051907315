"""The record of trials and decisions that reports and plots are made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple


class TrialEntry(NamedTuple):
    """One timed call. `counted` is false for a trial inside which an unsettled choice was met."""

    problem: Hashable
    alternative: str
    stage: int
    seconds: float
    counted: bool


class DecisionEntry(NamedTuple):
    """One decision. `source`: measured, stored, forced, or only (nothing else applied)."""

    problem: Hashable
    alternative: str
    source: str


class DisqualificationEntry(NamedTuple):
    """One alternative taken out for one problem, and why."""

    problem: Hashable
    alternative: str
    reason: str


Entry = TrialEntry | DecisionEntry | DisqualificationEntry


_Trial = tuple[Hashable, str, int, float, bool]  # the fields of a TrialEntry


class Journal:
    """What a selector did, oldest first; bounded: the oldest entries leave first.

    Trials are kept as plain tuples until somebody reads them: to make a TrialEntry takes 0.2 us of each trial.
    """

    __slots__ = ("_entries",)

    def __init__(self, limit: int = 16384) -> None:
        self._entries: deque[DecisionEntry | DisqualificationEntry | _Trial] = deque(maxlen=limit)

    def add(self, entry: DecisionEntry | DisqualificationEntry) -> None:
        """Append an entry."""
        self._entries.append(entry)

    def add_trial(self, problem: Hashable, alternative: str, stage: int, seconds: float, counted: bool) -> None:
        """Append a TrialEntry of these."""
        self._entries.append((problem, alternative, stage, seconds, counted))

    def entries(self) -> tuple[Entry, ...]:
        """A copy, oldest first."""
        return tuple(map(_entry, self._entries.copy()))


def _entry(kept: DecisionEntry | DisqualificationEntry | _Trial) -> Entry:
    return kept if isinstance(kept, DecisionEntry | DisqualificationEntry) else TrialEntry(*kept)
