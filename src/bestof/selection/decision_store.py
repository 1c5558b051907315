"""Between a selector and its store: a store that fails costs the memory of earlier runs, never a
call."""

from __future__ import annotations

from collections.abc import Callable

from bestof.errors import StoreBusy, StoreError
from bestof.selection.forced_choice import ForcedChoice
from bestof.selection.host import host
from bestof.selection.notice import warn
from bestof.selection.record import Record
from bestof.selection.store.deferred import DeferredStore
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store


class DecisionStore:
    """Loads, saves and asks for pins by `find_store`, asked each time; after a failure, warned of
    once, no more."""

    __slots__ = ("_failed", "_find_store", "_selector", "overdue")

    def __init__(self, selector: str, find_store: Callable[[], Store | None]) -> None:
        self._selector = selector
        self._find_store = find_store
        self._failed = False
        self.overdue = False  # whether an answer did not come in time; whoever asks resets it

    def answers(self, problem: str | None) -> bool:
        """Return whether the store has answered, by now, what it was asked of a problem. Does not
        wait."""
        self.overdue = False
        self.pinned(problem)
        self.load(problem)
        return not self.overdue

    def load(self, problem: str | None) -> Record | None:
        """What earlier runs on this host knew of a problem, by its canonical text."""
        if problem is None or self._failed:
            return None
        try:
            store = self._find_store()
            return None if store is None else store.load(self._selector, problem, host())
        except StoreBusy:
            self.overdue = True
            return None
        except Exception as error:
            self._give_up(error)
            return None

    def pinned(self, problem: str | None) -> ForcedChoice | None:
        """What a pin orders for a problem on this host; None for a problem that cannot be written
        asks for pins of every problem."""
        if self._failed:
            return None
        try:
            store = self._find_store()
            alternative = None if store is None else store.pinned(self._selector, problem, host())
        except StoreBusy:
            self.overdue = True
            return None
        except Exception as error:
            self._give_up(error)
            return None
        return None if alternative is None else ForcedChoice(alternative, "pinned")

    def save(self, record: Record) -> None:
        """Keep a record."""
        if self._failed:
            return
        try:
            store = self._find_store()
            if store is not None:
                store.save(record)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Use the store no more. An exception that is no error of bestof's own stores comes from a
        signal handler of the program, which interrupted them: it is passed on."""
        own = isinstance(self._find_store(), MemoryStore | DeferredStore)
        if own and not isinstance(error, StoreError | Warning):
            raise error
        self._failed = True
        warn(
            f"BestOf({self._selector!r}): its store failed, and is not used any more: "
            f"{type(error).__name__}: {error}"
        )
