"""What selectors have chosen at present."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from bestof.entries import entries
from bestof.selection.state.journal import DecisionEntry, Entry, TrialEntry

P = TypeVar("P", bound=Hashable)
_LIMIT = 65536


class CurrentDecisions(Generic[P]):
    """The names of the alternatives that one or more selectors have chosen, by problem.

    The selectors report to `listener`. A decision holds until the selector withdraws it, after a
    failure or a drift. `on_change` is called after every change, because everything that was
    derived from the decisions may then be wrong.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change
        self._chosen: dict[tuple[str, Any], str] = {}

    def listener(self, selector: str) -> Callable[[Entry], None]:
        """Return the function that takes the journal entries of the selector of this name."""

        def listen(entry: Entry) -> None:
            if isinstance(entry, TrialEntry):
                return
            if isinstance(entry, DecisionEntry):
                self._chosen[selector, entry.problem] = entry.alternative
            else:
                self._chosen.pop((selector, entry.problem), None)
            if len(self._chosen) > _LIMIT:
                self._chosen = {}
            self._on_change()

        return listen

    def get(self, selector: str, problem: P) -> str | None:
        """Return the name that a selector has chosen for a problem; None if it is undecided."""
        return self._chosen.get((selector, problem))

    def __iter__(self) -> Iterator[tuple[str, P, str]]:
        """Iterate over a copy: selector, problem, and the name that was chosen."""
        for (selector, problem), name in entries(self._chosen):
            yield selector, problem, name
