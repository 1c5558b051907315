"""A store that writes in a thread of its own, so that no call waits for a write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bestof.errors import StoreBusy, StoreError
from bestof.selection.notice import warn_of_all
from bestof.selection.store import lifetime
from bestof.selection.store.database import Database, Unavailable
from bestof.selection.store.patience import Patience
from bestof.selection.store.pin_order import closest, sorted_pins
from bestof.selection.store.record import Pin, Record
from bestof.selection.store.record_check import check_keepable, fault_of
from bestof.selection.store.waiting import Waiting
from bestof.selection.store.worker import EXIT_SECONDS, Job, Worker

_T = TypeVar("_T")

READ_SECONDS = 10.0  # how long the thread retries to read a busy store
ORDER_SECONDS = 60.0  # how long an order of a user waits
_LONG_ORDER_SECONDS = 1800.0  # an order that was begun, such as the import of 100,000 records
_ANSWERS_KEPT = 1024
_ANSWER_SECONDS = 10.0  # how long a late answer stays valid


class DeferredStore:
    """Keeps records in a database that only one thread of the store reads and writes.

    A saved record waits in memory until the thread has written it, usually for less than a
    millisecond. If the database is busy or cannot be written, the record stays in memory. It is
    read from there, and the write is tried again. The user is told once.

    `close` and the end of the process write the waiting records, for at most 3 s. A process that
    ends by a signal or by `os._exit` loses them. `flush` writes them earlier.

    A fork first waits until the thread has finished its work (at most 1 s), so that parent and
    child share no connection. The parent writes the waiting records. If the thread is stuck, the
    child works without a store, and warns.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._patience = Patience()
        self._waiting = Waiting(database, self._tell, self._tell_refused)
        self._answers: dict[Any, Job] = {}  # reads whose answers came too late for their call
        self._read_seconds = READ_SECONDS
        self._told = False  # whether the user was told that the database cannot be used
        self._unkept = False  # whether the user was told of a record that cannot be kept
        self._closed = False
        self._cut_off = False
        self._process = os.getpid()
        self._worker = Worker(self._write_some, self._database.disconnect)
        lifetime.watch(self)

    # For calls

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the record of one problem, or None.

        Raises StoreBusy if there is no answer in time.
        """
        key = (selector, problem, host)

        def read() -> Record | None:
            kept = self._readable(lambda: self._database.load(selector, problem, host))
            return self._waiting.over({} if kept is None else {key: kept}, key).get(key)

        return self._ask(key, read)

    def elsewhere(self, selector: str, problem: str, host: str) -> Record | None:
        """Return the newest decided record of a problem on another host than this, or None.

        Raises StoreBusy if there is no answer in time.
        """

        def read() -> Record | None:
            return self._readable(lambda: self._database.elsewhere(selector, problem, host))

        return self._ask(("elsewhere", selector, problem, host), read)

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        """Return the alternative of the closest pin, or None.

        Raises StoreBusy if there is no answer in time.
        """
        pins = self._ask(selector, lambda: self._readable(lambda: self._database.pins(selector)))
        return closest(pins or [], problem, host)

    def save(self, record: Record) -> None:
        """Keep a record, by the rule of `Record.absorb`. The thread writes it."""
        self._enter()
        if (fault := fault_of(record)) is not None:
            self._tell_unkept(record, fault)
            self._announce()
            return
        self._waiting.add(record)
        if not self._cut_off:
            self._worker.submit()
            if self._worker.is_ending:
                self._tell_lost()
        self._announce()

    # For users and tools

    def flush(self, seconds: float = EXIT_SECONDS) -> bool:
        """Wait until every saved record is written, at most this many seconds. Return whether it
        is."""
        self._enter()
        written = not self._waiting
        if not written and not self._cut_off:
            job = Job(self._write_all, seconds, patient=True)
            self._worker.submit(job)
            written = job.wait(seconds) and job.error is None
        self._announce()
        return written

    def records(self, selector: str | None = None) -> list[Record]:
        """Return every record, or those of one selector, sorted by selector, problem and host."""

        def read() -> list[Record]:
            kept = self._readable(lambda: self._database.records(selector)) or []
            found = self._waiting.over({record.key: record for record in kept}, selector)
            return [found[key] for key in sorted(found)]

        return self._wait_for(read) or []

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Return every pin, or those of one selector, sorted. None comes first."""
        found = self._wait_for(lambda: self._readable(lambda: self._database.pins(selector)))
        return sorted_pins(found or [])

    def contents(self) -> tuple[list[Record], list[Pin]]:
        def read() -> tuple[list[Record], list[Pin]]:
            kept = {record.key: record for record in self._database.records(None)}
            found = self._waiting.over(kept, None)
            return [found[key] for key in sorted(found)], sorted_pins(self._database.pins(None))

        return self._obey(read, "cannot be read: {}")

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        order = Pin(selector, alternative, problem, host)
        self._obey(lambda: self._database.pin(order))

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Remove the pin with exactly these values. Return whether there was one."""
        return self._obey(lambda: self._database.unpin(selector, problem, host))

    def clear(self, selector: str | None = None) -> int:
        """Remove every record, or those of one selector, but no pin. Return how many."""

        def remove() -> int:
            gone = self._database.clear(selector) | self._waiting.remove(selector)
            return len(gone)

        return self._obey(remove)

    def unite(
        self, records: Sequence[Record], pins: Sequence[Pin] = (), *, theirs: bool = True
    ) -> int:
        check_keepable(records)

        def unite() -> int:
            if self._waiting:
                self._waiting.write_all()
            return self._database.unite(records, pins, theirs=theirs)

        return self._obey(unite)

    def limit_waits(self, seconds: float) -> None:
        """Let users and tools wait at most twice this long for a read, for example at exit."""
        self._read_seconds = seconds

    def close(self) -> None:
        """Write what was saved, within 3 s, and close the connection. Closing twice is harmless."""
        if self._closed:
            return
        self._finish(time.monotonic() + EXIT_SECONDS)
        self._closed = True
        self._announce()

    @property
    def url(self) -> str:
        return self._database.url

    def __del__(self) -> None:
        # false if __init__ has raised
        if hasattr(self, "_worker") and self._process == os.getpid():
            self._database.disconnect()

    # Requests to the thread

    def _ask(self, key: Any, read: Callable[[], _T | None]) -> _T | None:
        """Return what `read` finds, or None if there is nothing.

        Raises StoreBusy if that takes longer than a call may wait.
        """
        self._enter()
        if self._cut_off or not (self._waiting or self._database.exists()):
            self._announce()
            return None
        job = self._answers.get(key)
        if job is None or (job.finished and time.monotonic() - job.since > _ANSWER_SECONDS):
            job = Job(read, READ_SECONDS)
            self._worker.submit(job)
            if not self._patience.wait(job):
                while len(self._answers) >= _ANSWERS_KEPT:
                    self._answers.pop(next(iter(self._answers)), None)
                self._answers[key] = job
        if not job.finished:
            raise StoreBusy(f"{self._database.title} has not answered yet; ask again")
        found: _T | None = self._taken(job)
        return found

    def _wait_for(self, read: Callable[[], _T | None]) -> _T | None:
        self._enter()
        if self._cut_off or not (self._waiting or self._database.exists()):
            return None
        job = Job(read, self._read_seconds)
        self._worker.submit(job)
        job.wait(2 * self._read_seconds)
        found: _T | None = self._taken(job)
        return found

    def _taken(self, job: Job) -> Any:
        if job.error is not None or not job.finished:
            self._tell(f"cannot be read ({job.error or 'it does not answer'})")
        self._announce()
        return job.result

    def _obey(
        self,
        order: Callable[[], _T],
        failure: str = "cannot be written: {}; nothing was changed",
    ) -> _T:
        self._enter()
        job = Job(order, ORDER_SECONDS)
        self._worker.submit(job)
        job.wait(2 * ORDER_SECONDS)
        if job.begun and not job.finished:  # 100,000 records take 25 s, on a busy machine minutes
            job.wait(_LONG_ORDER_SECONDS)
        self._announce()
        if isinstance(job.error, StoreError):
            raise job.error
        if job.begun and not job.finished:
            raise StoreError(
                f"{self._database.title} has not finished in {_LONG_ORDER_SECONDS / 60:.0f} "
                "minutes; the order may still be carried out while this process runs"
            )
        if job.error is not None or not job.finished:
            reason = job.error or "it does not answer"
            raise StoreError(f"{self._database.title} {failure.format(reason)}") from job.error
        result: _T = job.result
        return result

    # Run by the thread

    def _readable(self, read: Callable[[], _T]) -> _T | None:
        """Return what `read` finds. If waiting does not help, return None and add a warning."""
        try:
            return read()
        except Unavailable as error:
            if error.busy:
                raise
            self._tell(f"cannot be read ({error}); bestof searches again")
        except StoreError as error:
            self._tell_refused(error)
        return None

    # Methods, because a fork replaces `_waiting`.

    def _write_some(self) -> float | None:
        return self._waiting.write_some()

    def _write_all(self) -> None:
        self._waiting.write_all()

    # Forks and exit (called by lifetime.py)

    def before_fork(self, deadline: float) -> bool:
        """End the thread, and start none until the fork is over. Return whether it ended in
        time."""
        self._worker.guard.acquire()
        return self._worker.stop(max(0.0, deadline - time.monotonic()))

    def after_fork_in_parent(self) -> None:
        """Allow the thread to start again."""
        self._worker.guard.release()
        if self._waiting and not self._closed:
            self._worker.submit()

    def after_fork_in_child(self, *, paused: bool) -> None:
        """Start without the parent's thread and connection.

        If the parent could not end its thread (`paused` is false), work without a store.
        """
        self._process = os.getpid()
        self._worker.renew()
        self._waiting = Waiting(self._database, self._tell, self._tell_refused)
        self._answers = {}
        self._database.abandon()
        if not paused:
            self._cut_off = True
            self._tell(
                "was in use when this process was forked; the child keeps decisions in memory"
            )

    def at_exit(self, deadline: float) -> None:
        """Write the waiting records. Records saved after this are written by their callers."""
        self._finish(deadline)
        self._worker.work_here(deadline)
        self._announce()

    def _enter(self) -> None:
        if self._closed:
            raise StoreError(f"{self._database.title} was closed; open it again to use it")
        if self._process != os.getpid():
            # The process was forked without Python's knowledge. Even closing the parent's
            # connection could damage the file.
            self.after_fork_in_child(paused=True)

    def _finish(self, deadline: float) -> None:
        """Write the waiting records, end the thread, and warn of records that are lost."""
        if self._closed or self._cut_off or self._process != os.getpid():
            return
        if self._waiting:
            job = Job(self._write_all, max(0.0, deadline - time.monotonic()), patient=True)
            self._worker.submit(job)
            job.wait(max(0.0, deadline - time.monotonic()))
        self._worker.stop(max(0.05, deadline - time.monotonic()))
        self._tell_lost()

    def _tell_lost(self) -> None:
        lost, reason = self._waiting.lost, self._waiting.reason
        if lost:
            known = isinstance(reason, StoreError) and self._told  # the first warning has said why
            why = "" if known else f" ({reason or 'it does not answer'})"
            self._database.notices.append(
                f"{self._database.title} could not be written{why}; decisions are lost: {lost}"
            )

    def _tell(self, what: str, advice: bool = True) -> None:
        if not self._told:
            self._told = True
            more = "; set BESTOF_STORE to another store, or to 'off'" if advice else ""
            self._database.notices.append(f"{self._database.title} {what}{more}")

    def _tell_refused(self, error: StoreError) -> None:
        """Warn that the place cannot be a store. The error names it, and says what to do."""
        if not self._told:
            self._told = True
            self._database.notices.append(f"{error}; until then, decisions stay in memory")

    def _tell_unkept(self, record: Record, fault: str) -> None:
        """Warn once of a record with values that no store can keep."""
        if not self._unkept:
            self._unkept = True
            self._database.notices.append(
                f"{self._database.title}: the record of {record.selector!r:.200} for "
                f"{record.problem!r:.200} is not kept, because {fault}"
            )

    def _announce(self) -> None:
        """Give the warnings. This is the end of a call, because a warning may be raised as an
        error."""
        warn_of_all(self._database.notices)
