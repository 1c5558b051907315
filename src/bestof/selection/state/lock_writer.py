"""Collect the decisions of a process for a lock file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from bestof.entries import entries
from bestof.selection.state.decision import Decision
from bestof.selection.store.lock_file import export_records
from bestof.selection.store.record import Pin, Record

_UNDECIDED = "not settled"
_ALONE = "only one alternative"
_LAST = "its other alternatives were disqualified"
_ORDERS = ("forced", "pinned")
_REASONS = {"only": _ALONE, **dict.fromkeys(_ORDERS, "ordered, not measured")}


class LockWriter:
    """The last record of every problem of the process, also of selectors that are gone.

    Selectors tell the writers in `active` what they meet and decide, with their lock held. Other
    threads may do so while the file is written. A problem that only one alternative can run needs
    no record.
    """

    active: ClassVar[list[LockWriter]] = []

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}
        self._left_out: dict[tuple[str, str], str] = {}
        # Records of other processes that decided a problem too.
        self._others: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)

    def opened(self, selector: str, problem: str) -> None:
        """Note that a problem was met. A decision of it that is searched again stays."""
        if (selector, problem) not in self._records:
            self._left_out[selector, problem] = _UNDECIDED

    def settled(
        self, selector: str, problem: str, decision: Decision, record: Record | None
    ) -> None:
        """Note a decision. `record` is None if nothing was measured."""
        key, source = (selector, problem), decision.source
        if record is not None and source not in _ORDERS and decision.seconds is not None:
            self._records[key] = replace(record, decision=decision.alternative)
            self._left_out.pop(key, None)
        elif key not in self._records:
            is_last = source == "only" and record is not None
            self._left_out[key] = _LAST if is_last else _REASONS.get(source, _UNDECIDED)

    def withdraw(self, selector: str, problem: str, alternative: str) -> None:
        """Drop the record of a problem if it names this alternative, which was disqualified."""
        key = selector, problem
        record = self._records.get(key)
        if record is not None and record.decision == alternative:
            del self._records[key]
            self._left_out[key] = _UNDECIDED

    def unite(self, records: Iterable[Record], left_out: Iterable[tuple[str, str, str]]) -> None:
        """Add what another process has decided, and its `left_out_problems`.

        The record that came first stays, unless `follow` takes another.
        """
        for one in records:
            key = one.selector, one.problem
            if self._records.setdefault(key, one) is not one:
                self._others[key].append(one)
        for selector, problem, why in left_out:
            self._left_out.setdefault((selector, problem), why)
        for key in list(self._records):
            self._left_out.pop(key, None)

    def follow(self, decisions: Mapping[tuple[str, str], str | None]) -> None:
        """Where processes have decided differently, take the record of the decision given here."""
        for key, others in self._others.items():
            own, wanted = self._records[key], decisions.get(key)
            if own.decision != wanted:
                self._records[key] = next((o for o in others if o.decision == wanted), own)

    def left_out_problems(self) -> list[tuple[str, str, str]]:
        """Return the problems without a record as triples (selector, problem, why)."""
        return [(*problem, why) for problem, why in entries(self._left_out)]

    def text(self, pins: Sequence[Pin] = ()) -> str:
        """Return the text of the lock file, with the pins of the selectors that were met."""
        met = {selector for selector, _ in (*self._records, *self._left_out)}
        return export_records(self._records.values(), [one for one in pins if one.selector in met])

    @property
    def count(self) -> int:
        """The number of recorded problems."""
        return len(self._records)

    @property
    def left_out(self) -> list[str]:
        """A line for each problem that is not recorded, although there was a choice."""
        return [
            f"{selector} {problem}: {why}"
            for (selector, problem), why in entries(self._left_out)
            if why != _ALONE
        ]
