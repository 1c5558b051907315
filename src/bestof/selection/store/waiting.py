"""The records that wait until a store has written them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bestof.errors import StoreError
from bestof.selection.store.database import Database, Unavailable
from bestof.selection.store.record import Record
from bestof.selection.store.retry import Retry

Key = tuple[str, str, str]  # selector, problem, host

_BATCH = 256  # records in one transaction
_TURN_SECONDS = 0.01  # between two transactions, so that other processes have their turn
_MOST = 50_000  # the most records that wait (2 KB each); beyond this, the oldest are lost


class Waiting:
    """Holds records in memory, oldest first, and writes them to a database.

    Any thread may add and count records. One thread at a time does all else. It finds the records
    of one problem by their key. (A scan of all records made each read longer than the one before:
    after 20,000 problems in one loop, 19,000 still waited 60 s later.) If the database cannot be
    written, the records stay, and `Retry` says when to try again. `tell` is called with the warning
    for the user, and whether advice on `BESTOF_STORE` helps; `tell_refused` if the place cannot be
    a store.
    """

    def __init__(
        self,
        database: Database,
        tell: Callable[[str, bool], None],
        tell_refused: Callable[[StoreError], None],
    ) -> None:
        self._database = database
        self._tell = tell
        self._tell_refused = tell_refused
        self._new: deque[Record] = deque()  # added, and not taken in yet
        self._records: deque[Record] = deque()
        self._by_key: dict[Key, deque[Record]] = {}
        self._retry = Retry()
        self._given_up = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._records)

    def add(self, record: Record) -> None:
        self._new.append(record)

    def over(self, kept: dict[Key, Record], which: str | Key | None) -> dict[Key, Record]:
        """Return `kept` as it will be once the waiting records are written.

        `which` is a key or a selector, to restrict the records, or None for all of them.
        """
        self._take_in()
        found = dict(kept)
        waiting = self._by_key.get(which, ()) if isinstance(which, tuple) else self._records
        for record in waiting:
            if which in (None, record.selector, record.key):
                old = found.get(record.key) or Record(*record.key, None, (), record.updated)
                found[record.key] = old.absorb(record)
        return found

    def remove(self, selector: str | None) -> set[Key]:
        """Drop the records of all selectors, or of one. Return their keys."""
        self._take_in()
        gone = set()
        for _ in range(len(self._records)):
            record = self._drop_oldest()
            if selector in (None, record.selector):
                gone.add(record.key)
            else:
                self._hold(record)
        return gone

    def write_some(self) -> float | None:
        """Write one batch if it is time. Return the seconds until the next, or None if none
        waits."""
        if not self:
            return None
        if (left := self._retry.seconds_left()) > 0:
            return left
        try:
            self._write_batch()
        except Unavailable as error:
            self._failed(error)
            return self._retry.seconds_left()
        except StoreError as error:
            self._tell_refused(error)
            return self._retry.give_up(error)
        return _TURN_SECONDS if self else None

    def write_all(self) -> None:
        """Write the records that wait now, but not those that are added meanwhile."""
        for _ in range(0, len(self), _BATCH):
            try:
                self._write_batch()
            except Unavailable as error:
                self._failed(error)
                raise
            except StoreError as error:
                self._tell_refused(error)
                self._retry.give_up(error)
                raise

    @property
    def lost(self) -> int:
        """Return how many decisions would be lost if the process ended now."""
        waiting = [*self._records.copy(), *self._new.copy()]
        return len({record.key for record in waiting}) + self._given_up

    @property
    def reason(self) -> Exception | None:
        """Return why the last attempt failed, or None."""
        return self._retry.reason

    def _take_in(self) -> None:
        """Order the new records. A thread that counts meanwhile may count one of them twice."""
        while self._new:
            self._hold(self._new[0])
            self._new.popleft()

    def _hold(self, record: Record) -> None:
        self._by_key.setdefault(record.key, deque()).append(record)
        self._records.append(record)

    def _drop_oldest(self) -> Record:
        record = self._records.popleft()
        same = self._by_key[record.key]
        same.popleft()
        if not same:
            del self._by_key[record.key]
        return record

    def _write_batch(self) -> None:
        self._take_in()
        batch = [self._records[place] for place in range(min(_BATCH, len(self._records)))]
        try:
            self._database.write(batch)
        except (Unavailable, StoreError):
            raise
        except Exception as error:  # an error in bestof itself must not end the thread silently
            raise Unavailable(f"{type(error).__name__}: {error}", busy=False) from error
        for _ in batch:  # Only this thread removes records. Writing a record twice is harmless.
            self._drop_oldest()
        self._retry.succeeded()

    def _failed(self, error: Unavailable) -> None:
        while len(self._records) > _MOST:
            self._drop_oldest()
            self._given_up += 1
        if self._retry.failed(error):
            self._tell(
                f"cannot be written ({error}); new decisions wait in memory until it can",
                True,
            )
