"""A store in memory, which ends with the process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

from bestof.selection.notice import warn
from bestof.selection.store.merge import merge, pins_to_write
from bestof.selection.store.pin_order import closest, sorted_pins
from bestof.selection.store.record import Pin, Record
from bestof.selection.store.record_check import check_keepable, fault_of


class MemoryStore:
    """Keeps records in a dict. It is the reference for the behaviour of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unkept = False  # whether the user was told of a record that cannot be kept
        self._records: dict[tuple[str, str, str], Record] = {}
        self._hosts: set[str] = set()  # of all records so far
        self._pins: dict[tuple[str, str | None, str | None], str] = {}
        _STORES.add(self)

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        return self._records.get((selector, problem, host))

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host than this, or None."""
        # Each new problem asks this. A look at all records made each one dearer than the last.
        kept = [self._records.get((selector, problem, one)) for one in self._hosts - {host}]
        found = [one for one in kept if one is not None and one.decision is not None]
        return min(found, key=lambda record: (-record.updated, record.host), default=None)

    def save(self, record: Record) -> None:
        if (fault := fault_of(record)) is not None:
            if not self._unkept:
                self._unkept = True
                warn(
                    f"the record of {record.selector!r:.200} for {record.problem!r:.200} is not "
                    f"kept, because {fault}"
                )
            return
        with self._lock:
            old = self._records.get(record.key) or Record(*record.key, None, (), record.updated)
            self._records[record.key] = old.absorb(record)
            self._hosts.add(record.host)

    def records(self, selector: str | None = None) -> list[Record]:
        """Return every record, or those of one selector, sorted by selector, problem and host."""
        with self._lock:
            found = [
                record for record in self._records.values() if selector in (None, record.selector)
            ]
        return sorted(found, key=lambda record: record.key)

    def contents(self) -> tuple[list[Record], list[Pin]]:
        return self.records(), self.pins()

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        with self._lock:
            self._pins[selector, problem, host] = alternative

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Remove the pin with exactly these values. Return whether there was one."""
        with self._lock:
            return self._pins.pop((selector, problem, host), None) is not None

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        return closest(self.pins(selector), problem, host)

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Return every pin, or those of one selector, sorted. None comes first."""
        with self._lock:
            found = [
                Pin(name, alternative, problem, host)
                for (name, problem, host), alternative in self._pins.items()
                if selector in (None, name)
            ]
        return sorted_pins(found)

    def clear(self, selector: str | None = None) -> int:
        """Remove every record, or those of one selector, but no pin. Return how many."""
        with self._lock:
            gone = [key for key in self._records if selector in (None, key[0])]
            for key in gone:
                del self._records[key]
            return len(gone)

    def unite(
        self, records: Sequence[Record], pins: Sequence[Pin] = (), *, theirs: bool = True
    ) -> int:
        check_keepable(records)
        came = {record.key for record in records}
        merged = merge((record for record in self.records() if record.key in came), records)
        written, stayed = pins_to_write(self.pins(), pins, replace=theirs)
        with self._lock:
            kept, pinned = dict(self._records), dict(self._pins)
            for record in merged:
                old = kept.get(record.key) or Record(*record.key, None, (), record.updated)
                kept[record.key] = old.absorb(record)
            for pin in written:
                pinned[pin.selector, pin.problem, pin.host] = pin.alternative
            self._records, self._pins = kept, pinned
            self._hosts.update(record.host for record in merged)
        return stayed

    def flush(self, seconds: float = 3.0) -> bool:  # noqa: ARG002 - a store in memory never waits
        """Return True, because nothing waits to be written."""
        return True

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    @property
    def url(self) -> str:
        return "memory:"


_STORES: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _renew_locks() -> None:
    """Replace the locks in a forked child, because a thread of the parent may hold them."""
    for store in list(_STORES):
        store._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
