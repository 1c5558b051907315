"""The lock of a process: only decisions that a file records are taken."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bestof.entries import entries
from bestof.errors import InvalidArgument, StoreError
from bestof.selection.identity.alternative import Alternative
from bestof.selection.identity.host import host
from bestof.selection.notice import warn
from bestof.selection.store.lock_file import import_pins, import_records, read_lock_file
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Pin, Record

_THREADS = re.compile(r"\bthreads=\d+")


class Lock(MemoryStore):
    """The records and pins of a lock file, as the store of every selector of the process.

    Nothing is ever saved in it. A problem is recorded if the lock has a decision for it on this
    host, for an alternative of the same version. Every other problem takes the first alternative,
    and `missing` says why: its keys are pairs (selector, problem). So it does if the recorded
    alternative is disqualified.

    A lock whose records are all of other hosts is refused. If some are, bestof says so once.
    """

    def __init__(self, path: str, records: Sequence[Record], pins: Sequence[Pin] = ()) -> None:
        super().__init__()
        self.path = os.path.abspath(path)  # the program may change its directory
        self.missing: dict[tuple[str, str], str] = {}
        self._fitting: dict[str, tuple[int, int]] = {}  # records that fit, and all, by selector
        self._problems: defaultdict[str, set[str]] = defaultdict(set)  # as recorded, by selector
        self._tells_unfit = True
        self.unite(records, pins)
        here = [one for one in records if one.host == host()]
        for one in here:
            self._problems[one.selector].add(one.problem)
        decided = [one for one in here if one.decision is not None]
        if not decided and not pins:
            raise InvalidArgument(self._no_record_fits(records, here))
        if len(here) < len(records):
            warn(
                f"the lock {path}: {len(here)} of its {len(records)} records are of this machine; "
                "the others count as not recorded"
            )

    def _no_record_fits(self, records: Sequence[Record], here: Sequence[Record]) -> str:
        where = f"the lock {self.path}"
        if not records:
            return f"{where} has no record; write one by `bestof run --write-lock FILE script.py`"
        if here:
            return f"{where}: none of its {len(records)} records holds a decision; run longer"
        others = ", ".join(sorted({repr(one.host) for one in records}))
        return (
            f"{where}: 0 of its {len(records)} records fit: they are of {others}, and this machine "
            f"is {host()!r}; write a lock here by `bestof run --write-lock FILE script.py`, or "
            "give both machines the same name by BESTOF_HOST"
        )

    def save(self, record: Record) -> None:
        """Keep nothing."""

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:  # noqa: ARG002
        """Return None: what another host has decided does not count."""
        return None

    @property
    def url(self) -> str:
        return f"lock:{self.path}"

    def meet(self, selector: str, alternatives: Iterable[Alternative]) -> None:
        """Count the records of a selector that fit its alternatives. Warn once if some do not."""
        own = tuple(alternatives)
        records = [one for one in self.records(selector) if one.host == host() and one.decision]
        changed = [one.decision or "" for one in records if not valid_decision(one, own)]
        self._fitting[selector] = len(records) - len(changed), len(records)
        if changed and self._tells_unfit:
            self._tells_unfit = False
            names = ", ".join(map(repr, sorted(set(changed))))
            warn(
                f"the lock {self.path}: {len(records) - len(changed)} of its {len(records)} "
                f"records of {selector!r} fit this program: the code of {names} has another "
                "version, or is gone; such problems take the first alternative, and are listed at "
                "the end"
            )

    def fitting(self, selectors: Iterable[str]) -> tuple[int, int]:
        """Return how many records of these selectors fit, and how many there are."""
        pairs = [self._fitting.get(one, (0, 0)) for one in selectors]
        return sum(fit for fit, _ in pairs), sum(every for _, every in pairs)

    def miss(self, selector: str, problem: str, record: Record | None) -> None:
        """Note that a problem took the first alternative. `record` is what the lock has of it."""
        why = "no record"
        if record is not None and record.decision is not None:
            why = f"{record.decision!r} has another version, or does not apply"
        elif record is not None:
            why = "the record has no decision"
        else:
            form = _THREADS.sub("", problem)
            alike = [one for one in self._problems[selector] if _THREADS.sub("", one) == form]
            known = sorted(found[0] for one in alike if (found := _THREADS.search(one)))
            if known:
                why = f"recorded with another number of threads: {', '.join(known)}"
        self.missing[selector, problem] = why

    def lose(self, selector: str, problem: str, alternative: str, reason: str) -> None:
        """Note that the recorded alternative of a problem was disqualified in this process."""
        self.missing[selector, problem] = f"{alternative!r} was disqualified: {reason}"

    def missing_lines(self) -> list[str]:
        """Return a line for each problem that took the first alternative."""
        missing = entries(self.missing)  # other threads may add some meanwhile
        return [f"{selector} {problem}: {why}" for (selector, problem), why in missing]


def valid_decision(record: Record, alternatives: Iterable[Alternative]) -> str | None:
    """Return the recorded alternative if it is one of these, of the same version; else None."""
    versions = {one.alternative: one.version for one in record.evidence}
    return next(
        (
            one.name
            for one in alternatives
            if one.name == record.decision and one.has_had(versions[one.name])
        ),
        None,
    )


class _Process:
    lock: Lock | None = None
    asked = False  # whether BESTOF_LOCKED was read


def read_lock(path: str) -> Lock:
    """Return the lock in a file.

    Raises InvalidArgument if the file cannot be read or if no record fits this machine, and
    StoreError, with the line, if it is no lock file.
    """
    text = read_lock_file(path)
    try:
        records, pins = import_records(text), import_pins(text)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error
    return Lock(path, records, pins)


def current_lock() -> Lock | None:
    """Return the lock of this process, or None.

    The first call reads the file that the environment variable BESTOF_LOCKED names, and raises what
    `read_lock` raises.
    """
    if not _Process.asked:
        path = os.environ.get("BESTOF_LOCKED")
        if path:
            _Process.lock = read_lock(path)
        _Process.asked = True
    return _Process.lock


def set_lock(lock: Lock | None) -> None:
    """Set the lock of this process, in place of the one that the environment names."""
    _Process.lock, _Process.asked = lock, True
