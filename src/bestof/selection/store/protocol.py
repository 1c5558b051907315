"""The protocol of a store: where decisions and their evidence outlive the process."""

from __future__ import annotations

from typing import Protocol

from bestof.selection.record import Pin, Record


class Store(Protocol):
    """Keeps records by (selector, problem, host), and pins. Safe to call from several threads.

    `load`, `save`, `records`, `pins` and `pinned` never raise because of the file or the service behind the store:
    they warn once, and the process goes on with what it has in memory. `pin`, `unpin` and `clear` are orders of a
    user, and raise StoreError where they cannot be carried out.
    """

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """The record of one problem, None where there is none. Evidence comes in the order first saved."""

    def save(self, record: Record) -> None:
        """Keep a record, by the rule of `Record.absorb`: evidence is replaced alternative by alternative, a decision
        only by another decision."""

    def records(self, selector: str | None = None) -> list[Record]:
        """Every record (of one selector, where named), sorted by selector, problem and host."""

    def pin(
        self, selector: str, alternative: str, problem: str | None = None, host: str | None = None
    ) -> None:
        """Order one alternative for a problem (None: every problem) on a host (None: every host)."""

    def unpin(self, selector: str, problem: str | None = None, host: str | None = None) -> bool:
        """Take back the pin that was given with exactly these; whether there was one."""

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        """The alternative ordered for a problem on a host, None where there is no order.

        The closest pin counts: of this problem before every problem, then of this host before every host. With None,
        only pins for every problem, or every host, are looked at.
        """

    def pins(self, selector: str | None = None) -> list[Pin]:
        """Every pin (of one selector, where named), sorted; None comes first."""

    def clear(self, selector: str | None = None) -> int:
        """Forget every record (of one selector, where named), and no pin; how many were forgotten."""

    def close(self) -> None:
        """Release what the store holds open; the store must not be used afterwards. Closing twice is harmless."""

    @property
    def url(self) -> str:
        """What names this store: `memory:`, `sqlite:////absolute/path`."""
