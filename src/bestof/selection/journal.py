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


class Journal:
    """What a selector did, oldest first; bounded: the oldest entries leave first."""

    __slots__ = ("_entries",)

    def __init__(self, limit: int = 16384) -> None:
        self._entries: deque[Entry] = deque(maxlen=limit)

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self._entries.append(entry)

    def entries(self) -> tuple[Entry, ...]:
        """A copy, oldest first."""
        return tuple(self._entries)
