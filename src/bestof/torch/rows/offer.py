"""Which rows of each operation the process chooses among, as the configuration says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row


class Offer(NamedTuple):
    """Names of rows that are left in or out, for all operations of the process.

    PyTorch's own row of an operation stays in any case.

    only: the rows that stay beside PyTorch's own, wherever they can run, whatever is thought of
        their speed; all if there are none.
    without: rows that are left out, and operations of which PyTorch's own row stays alone.
    """

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether a row of this name stays."""
        return name not in self.without and (not self.only or name in self.only)


class Offered(NamedTuple):
    """The rows of an operation that stay, and whether they are ordered by name."""

    rows: tuple[Row[Any], ...]
    is_order: bool


class _Process:
    offer = Offer()


def make_offer(offer: Offer) -> None:
    """Let the selectors that are made from now on have these rows; ask present ones again."""
    _Process.offer = offer


def is_offered(name: str) -> bool:
    """Return whether a row, or an operation, of this name is left in at present."""
    return _Process.offer.has(name)


def is_chosen_for(operation: Operation[Any]) -> bool:
    """Return whether the configuration leaves an operation any row beside PyTorch's own."""
    return len(offered(operation).rows) > 1


def offered(operation: Operation[Any]) -> Offered:
    """Return the rows of an operation that the process chooses among at present."""
    offer = _Process.offer
    first, *others = operation.rows
    is_out = operation.name in offer.without
    rows = () if is_out else tuple(row for row in others if offer.has(row.name))
    return Offered((first, *rows), bool(offer.only))


def only_pytorch(operations: Iterable[Operation[Any]], offer: Offer) -> list[str]:
    """Return the operations to which `only` leaves PyTorch's own row alone."""
    return [
        one.name
        for one in operations
        if offer.only
        and one.name not in offer.without
        and not any(offer.has(row.name) for row in one.rows[1:])
    ]
