"""Protect a selector from its store: if the store fails, decisions are not kept, and calls go
on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bestof.errors import StoreBusy, StoreError
from bestof.selection.identity.host import host
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.notice import warn
from bestof.selection.state.forced_choice import ForcedChoice
from bestof.selection.state.lock import current_lock
from bestof.selection.store.deferred import DeferredStore
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Record

_T = TypeVar("_T")
_TOLD: set[str] = set()  # wrong settings that the user was told of


class DecisionStore:
    """The store of one selector, as the selector sees it. In a locked run it is the lock.

    `find_store` is called for each request. After the first failure, bestof warns once and stops
    using the store. `overdue` becomes true if an answer did not arrive in time; the caller resets
    it.
    """

    __slots__ = ("_failed", "_find_store", "_selector", "overdue")

    def __init__(self, selector: str, find_store: Callable[[], Store | None]) -> None:
        self._selector = selector
        self._find_store = find_store
        self._failed = False
        self.overdue = False

    def answers(self, problem: str | None) -> bool:
        """Return whether the store can answer by now what it was asked about a problem.

        Does not wait.
        """
        self.overdue = False
        self.pinned(problem)
        self.load(problem)
        return not self.overdue

    def find(self) -> Store | None:
        """Return the store, or None if there is none.

        If the setting of the store is wrong, calls go on without one. bestof tells it once, not
        for each selector.
        """
        lock = current_lock()
        if lock is not None:
            return lock
        if self._failed:
            return None
        try:
            return self._find_store()
        except StoreError as error:
            self._failed = True
            if str(error) not in _TOLD:
                _TOLD.add(str(error))
                warn(f"decisions are not kept: {error}")
            return None

    def load(self, problem: str | None) -> Record | None:
        """Return what earlier runs on this host know of a problem, given its canonical text."""
        if problem is None:
            return None
        return self._ask(lambda store: store.load(self._selector, problem, host()))

    def elsewhere(self, problem: str | None) -> Record | None:
        """Return the newest decided record of a problem on another host, or None.

        It only orders trials. So None stands for an answer that is late, too.
        """

        def ask(store: Store) -> Record | None:
            find = getattr(store, "elsewhere", None)  # a user's own store need not have it
            found: Record | None = None if find is None else find(self._selector, problem, host())
            return found

        return None if problem is None else self._ask(ask, may_be_late=True)

    def pinned(self, problem: str | None) -> ForcedChoice | None:
        """Return the pin that holds for a problem on this host, or None.

        `problem` is None if the problem has no canonical text. Pins for every problem hold for it
        too.
        """
        alternative = self._ask(lambda store: store.pinned(self._selector, problem, host()))
        return None if alternative is None else ForcedChoice(alternative, "pinned")

    def _ask(self, ask: Callable[[Store], _T | None], *, may_be_late: bool = False) -> _T | None:
        """Return the answer of the store; None if there is no store, or no answer in time."""
        if self._failed:
            return None
        try:
            store = self.find()
            return None if store is None else ask(store)
        except StoreBusy:
            self.overdue = self.overdue or not may_be_late
            return None
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)
            return None

    def save(self, record: Record) -> None:
        if self._failed:
            return
        try:
            store = self.find()
            if store is not None:
                store.save(record)
        except Exception as error:
            reraise_from_outside()
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Stop using the store, and warn.

        If a store of bestof raises another error than its own, the error comes from a signal
        handler of the program. This error is raised again.
        """
        own = isinstance(self._find_store(), MemoryStore | DeferredStore)
        if own and not isinstance(error, StoreError | Warning):
            raise error
        self._failed = True
        warn(
            f"BestOf({self._selector!r}): the store failed and is no longer used: "
            f"{type(error).__name__}: {error}"
        )
