"""Which rows of each operation the process chooses among, as the configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

from bestof.errors import InvalidArgument
from bestof.selection import BestOf
from bestof.torch.ops.memory_bound import bound_memory
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row

SHARED_IM2ROW = "shared im2row"
"""The alternative for a whole layer that has no row in a pass; see dispatch/convolution."""


class Offer(NamedTuple):
    """Names of rows that are left in or out, for all operations of the process.

    PyTorch's own row of an operation stays in any case.

    only: the rows that stay beside PyTorch's own. They are tried wherever they can run, whatever
        their estimated speed. Empty: all rows stay.
    without: rows that are left out, and operations of which PyTorch's own row stays alone.
    memory_mib: the most MiB for scratch, packed weights and kept matrices; None for no bound.
    skip_modules: patterns for the names of modules that are left to PyTorch.
    """

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    memory_mib: int | None = None
    skip_modules: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether a row of this name stays."""
        return name not in self.without and (not self.only or name in self.only)


class Offered(NamedTuple):
    """The rows of an operation that stay, whether they are ordered by name, and their memory."""

    rows: tuple[Row[Any], ...]
    is_order: bool
    memory_mib: int | None


class _Process:
    offer = Offer()
    asking: ClassVar[WeakSet[BestOf]] = WeakSet()


def make_offer(offer: Offer) -> None:
    """Offer these rows from now on. Each `RowSelector` asks when it is made or told to."""
    if offer == _Process.offer:
        return
    _Process.offer = offer
    bound_memory(offer.memory_mib)
    for selector in list(_Process.asking):
        selector.choose_among(selector.alternatives)


def asks(selector: BestOf) -> BestOf:
    """Return a selector of alternatives that are no rows. Their `supports` ask `is_offered`.

    The selector opens its problems again when the offer changes.
    """
    _Process.asking.add(selector)
    return selector


def check_offer(
    offer: Offer, operations: Sequence[Operation[Any]], of_plans: Iterable[str] = ()
) -> None:
    """Raise InvalidArgument for a name that no row, or for `without` no operation, has.

    of_plans: the names that algorithms for fused layers go by.
    """
    rows = {row.name for one in operations for row in one.rows}.union(of_plans, {SHARED_IM2ROW})
    firsts = {one.rows[0].name for one in operations}
    for name in offer.only:
        _check(f"config: kernel.only: there is no row {name!r}", name, rows)
    for name in offer.without:
        if name in firsts:
            raise InvalidArgument(
                f"config: kernel.without: {name!r} is PyTorch's own kernel, which always stays"
            )
        known = rows.union(one.name for one in operations)
        _check(f"config: kernel.without: there is no operation or row {name!r}", name, known)


def _check(told: str, name: str, known: set[str]) -> None:
    if name not in known:
        nearest = get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "see `bestof bench operation`"
        raise InvalidArgument(f"{told}; {hint}")


def is_offered(name: str) -> bool:
    """Return whether rows of this name are left in at present."""
    return _Process.offer.has(name)


def is_ordered(name: str) -> bool:
    """Return whether `kernel.only` names rows of this name, so that they are tried at any speed."""
    return name in _Process.offer.only


def skipped(modules: Iterable[str]) -> list[str]:
    """Return those names of modules that the configuration leaves to PyTorch."""
    patterns = _Process.offer.skip_modules
    return [name for name in modules if any(fnmatchcase(name, one) for one in patterns)]


def is_out(operation: str) -> bool:
    """Return whether an operation of this name is left to PyTorch as a whole."""
    return operation in _Process.offer.without


def is_chosen_for(operation: Operation[Any]) -> bool:
    """Return whether the configuration leaves an operation any row beside PyTorch's own."""
    offer = _Process.offer
    if operation.name in offer.without:
        return False
    return any(offer.has(row.name) for row in operation.rows[1:])


def offered(operation: Operation[Any]) -> Offered:
    """Return the rows of an operation that the process chooses among at present."""
    offer = _Process.offer
    first, *others = operation.rows
    is_out = operation.name in offer.without
    rows = () if is_out else tuple(row for row in others if offer.has(row.name))
    return Offered((first, *rows), bool(offer.only), offer.memory_mib)


def only_pytorch(operations: Iterable[Operation[Any]], offer: Offer) -> list[str]:
    """Return the operations to which `only` leaves PyTorch's own row alone."""
    return [
        one.name
        for one in operations
        if offer.only
        and one.name not in offer.without
        and not any(offer.has(row.name) for row in one.rows[1:])
    ]
