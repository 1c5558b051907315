"""The entries of one problem, as far as this rank has read them."""

from __future__ import annotations

from typing import Protocol

from bestof.torch.process.ranks.entry import DECIDE, Entry


class Carrier(Protocol):
    """What carries offers to the log."""

    @property
    def broken(self) -> bool:
        """Whether the log cannot be reached any more."""

    def ahead(self) -> int:
        """Return how many steps pass until all ranks have read what is written now."""

    def count_call(self, step: int) -> None:
        """Take note of a call of this rank that follows the log, in this optimizer step."""

    def carry(self, log: ProblemLog) -> None:
        """Write the offer of this problem soon."""


class ProblemLog:
    """The entries of one problem, and what this rank offers as the next one.

    The courier appends to `entries`. Searches read them and make offers.
    """

    __slots__ = ("_carrier", "_offer", "entries", "key")

    def __init__(self, key: str, carrier: Carrier) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self._carrier = carrier
        self._offer: tuple[int, Entry] | None = None

    @property
    def broken(self) -> bool:
        """Whether the log cannot be reached any more."""
        return self._carrier.broken

    @property
    def decided(self) -> bool:
        """Whether the last entry is a decision."""
        return bool(self.entries) and self.entries[-1].kind == DECIDE

    def offer(self, place: int, entry: Entry) -> None:
        """Offer an entry for this place among the entries of the problem.

        A second offer for the same place is ignored, and one for a place that is taken is dropped.
        """
        if self._offer is None or self._offer[0] != place:
            self._offer = place, entry
            self._carrier.carry(self)

    def offered(self) -> Entry | None:
        """Return the offer if its place is still free."""
        offer = self._offer
        return offer[1] if offer is not None and offer[0] == len(self.entries) else None

    def count_call(self, step: int) -> None:
        """Take note that a call follows the log: the carrier then looks often."""
        self._carrier.count_call(step)

    def ahead(self) -> int:
        """Return how many steps pass until all ranks have read what is written now."""
        return self._carrier.ahead()
