"""The protocol of a store: where decisions and their evidence outlive the process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bestof.selection.record import Record


class Store(Protocol):
    """Keeps records by (selector, problem, host). Safe to call from several threads."""

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        """The record of one problem, None where there is none."""

    def save(self, record: Record) -> None:
        """Keep a record: its decision replaces the one there; evidence is replaced alternative by alternative."""

    def records(self, selector: str | None = None) -> Iterable[Record]:
        """Every record (of one selector, where named), sorted by selector, problem and host."""

    def clear(self, selector: str | None = None) -> int:
        """Forget every record (of one selector, where named); how many were forgotten."""

    def close(self) -> None:
        """Release what the store holds open; the store must not be used afterwards."""

    @property
    def url(self) -> str:
        """What names this store: `memory:`, `sqlite:///path`."""
