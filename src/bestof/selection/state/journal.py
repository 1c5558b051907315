"""Keep a record of trials and decisions, from which reports and plots are made."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from bestof.selection.duration import duration
from bestof.selection.identity.problem import problem_text
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.notice import warn


class TrialEntry(NamedTuple):
    """One timed call.

    `counted` is false if the trial met an unsettled choice inside, or waited for a processor.
    `waited` are the seconds for which it waited, if it does not count for this reason.
    """

    problem: Hashable
    alternative: str
    stage: int
    seconds: float
    counted: bool
    waited: float = 0.0


class DecisionEntry(NamedTuple):
    """One decision. `source` is one of those of a `ProblemReport`."""

    problem: Hashable
    alternative: str
    source: str


class DisqualificationEntry(NamedTuple):
    """One alternative disqualified for one problem, and the reason."""

    problem: Hashable
    alternative: str
    reason: str


class DriftEntry(NamedTuple):
    """A race that is run again, because the winner has become slower or faster.

    `before` is its median when it won, `after` the median of its samples since, in seconds.
    """

    problem: Hashable
    alternative: str
    before: float
    after: float


Entry = TrialEntry | DecisionEntry | DisqualificationEntry | DriftEntry
_Rare = DecisionEntry | DisqualificationEntry | DriftEntry


_Trial = tuple[Hashable, str, int, float, bool, float]  # the fields of a TrialEntry

_log = logging.getLogger("bestof")


def logging_trials(
    selector: str, listener: Callable[[Entry], object] | None
) -> Callable[[Entry], object] | None:
    """Return a listener that also logs trials and disqualifications, if DEBUG is wanted now.

    Decisions and drift are logged at INFO where they are made.
    """
    if not _log.isEnabledFor(logging.DEBUG):
        return listener

    def tell(entry: Entry) -> None:
        where = f"BestOf({selector!r}), problem {problem_text(entry.problem)}"
        if isinstance(entry, TrialEntry):
            took = f"{entry.alternative} took {duration(entry.seconds)}"
            stage = f" (stage {entry.stage})" if entry.stage else ""
            _log.debug("%s: %s%s%s", where, took, stage, _why_not(entry))
        elif isinstance(entry, DisqualificationEntry):
            _log.debug("%s: %s is out: %s", where, entry.alternative, entry.reason)
        if listener is not None:
            listener(entry)

    return tell


def _why_not(trial: TrialEntry) -> str:
    if trial.counted:
        return ""
    if trial.waited:
        return f"; not counted: it waited for a processor for {duration(trial.waited)}"
    return "; not counted: it contains another search"


class Journal:
    """What a selector did, oldest first. The length is limited: the oldest entries are removed
    first.

    Trials are kept as plain tuples and converted when they are read. Making a TrialEntry would take
    0.2 us of each trial.

    `listener` is called with every entry, in order. This happens in `deliver`, which the selector
    calls after it has released its lock. If the listener raises, bestof warns once; the caller of
    the selector never sees the error.
    """

    __slots__ = ("_entries", "_interrupted", "_listener", "_warned", "add_trial", "undelivered")

    def __init__(
        self, limit: int = 16384, listener: Callable[[Entry], object] | None = None
    ) -> None:
        self._entries: deque[_Rare | _Trial] = deque(maxlen=limit)
        self._listener = listener
        self._interrupted: Entry | None = None
        self._warned = False
        self.undelivered: deque[Entry] = deque()
        # Takes the fields of a TrialEntry as a tuple. Without a listener it is the deque's own
        # method, which saves a Python call per trial.
        entries, undelivered = self._entries, self.undelivered

        def tell(trial: _Trial) -> None:
            entries.append(trial)
            undelivered.append(TrialEntry(*trial))

        self.add_trial: Callable[[_Trial], object] = entries.append if listener is None else tell

    def add(self, entry: _Rare) -> None:
        self._entries.append(entry)
        if self._listener is not None:
            self.undelivered.append(entry)

    def deliver(self) -> None:
        """Call the listener with the entries that it has not seen. Call this without a lock.

        An entry whose delivery is interrupted is delivered once more. It may not be the interrupt
        of a signal, but an exit of the listener's own: this must not come back for ever.
        """
        listener, undelivered = self._listener, self.undelivered
        if listener is None:
            return
        taken: deque[Entry] = deque()
        try:
            while undelivered:
                try:
                    # One call moves the entry: between two, an interrupt would lose it.
                    taken.extend(map(deque.popleft, (undelivered,)))
                except IndexError:  # another thread delivered it
                    return
                self._tell(listener, taken[0])
                taken.clear()
        except BaseException:
            if taken and taken[0] is not self._interrupted:
                self._interrupted = taken[0]
                undelivered.extendleft(taken)
            raise

    def _tell(self, listener: Callable[[Entry], object], entry: Entry) -> None:
        try:
            listener(entry)
        except Exception as error:
            reraise_from_outside()
            if not self._warned:
                self._warned = True
                warn(
                    f"on_event raised {type(error).__name__}: {error}; its later errors are not "
                    "reported"
                )

    def entries(self) -> tuple[Entry, ...]:
        """Return a copy of the entries, oldest first."""
        return tuple(map(_entry, self._entries.copy()))


def _entry(kept: _Rare | _Trial) -> Entry:
    return kept if isinstance(kept, _Rare) else TrialEntry(*kept)
