"""Observes bestof's selectors during a capture: their trials, decisions and drift.

Selectors log decisions and drift, with the time, to the logger `bestof`. The journal of trials has
no times. So each trial is placed at the next operation with its sizes that took at least as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from bestof.profile.mark import Mark
from bestof.profile.timeline.operation import CONVOLUTIONS, Operation
from bestof.profile.timeline.own_lines import operation_notation
from bestof.selection import BestOf
from bestof.selection.state.journal import TrialEntry
from bestof.torch.dispatch.overrides import operation_overrides

_LOGGER = logging.getLogger("bestof")


class Selectors(logging.Filter):
    """Observes between `start` and `stop`, as a filter of the logger. Other records pass
    unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self._level = logging.NOTSET
        self._shown = logging.WARNING
        self._records: list[tuple[float, str]] = []
        self._trials: dict[str, int] = {}

    def start(self) -> None:
        self._trials = {name: len(trials) for name, _, trials in _trials()}
        self._level, self._shown = _LOGGER.level, _LOGGER.getEffectiveLevel()
        _LOGGER.setLevel(min(self._shown, logging.INFO))
        _LOGGER.addFilter(self)

    def stop(self) -> None:
        _LOGGER.removeFilter(self)
        _LOGGER.setLevel(self._level)

    def filter(self, record: logging.LogRecord) -> bool:
        """Note a record. Return whether it would be handled without the capture."""
        self._records.append((record.created, record.getMessage()))
        return record.levelno >= self._shown

    def marks(self, operations: Sequence[Operation], began: int) -> list[Mark]:
        """Return what was observed. `began` is the start of the capture in nanoseconds since the
        epoch."""
        marks = [
            Mark("drift" if ": drift: " in text else "decisions", text, created - began / 1e9)
            for created, text in self._records
        ]
        for name, kinds, trials in _trials():
            marks += _placed(kinds, trials[self._trials.get(name, 0) :], operations, began)
        return sorted(marks, key=lambda mark: mark.start)


def _trials() -> Iterator[tuple[str, tuple[str, ...], list[TrialEntry]]]:
    """Yield a key of each selector, the operators that it chooses for, and its trials."""
    for one in operation_overrides():
        yield one.operation.name, one.operation.operators, _of(one.selector)


def _of(selector: BestOf) -> list[TrialEntry]:
    return [entry for entry in selector.journal.entries() if isinstance(entry, TrialEntry)]


def _placed(
    kinds: Sequence[str], trials: Sequence[TrialEntry], operations: Sequence[Operation], began: int
) -> Iterator[Mark]:
    """Yield the trials of one selector, each at its own operation. Leave out those that fit
    nowhere. The sizes of convolutions must agree; of other operations the duration tells."""
    candidates = [
        (one, operation_notation(one) if one.name in CONVOLUTIONS else None)
        for one in operations
        if one.name in kinds
    ]
    place = 0
    for trial in trials:
        wanted = getattr(trial.problem, "notation", None)
        for index in range(place, len(candidates)):
            one, notation = candidates[index]
            if notation == wanted and one.end - one.start >= trial.seconds * 1e9:
                place = index + 1
                start = one.end / 1e9 - trial.seconds - began / 1e9
                yield Mark(
                    "trials", f"{trial.alternative} {wanted or trial.problem}", start, trial.seconds
                )
                break
