"""A peer: one way to do the work that a benchmark measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from bestof.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of a table of peers.

    A peer is a library, or a mode of one, that a benchmark compares bestof with; `ours` marks the
    modes of bestof itself. The benchmark starts a process for each peer, which imports `module` and
    hands it the `options`. `label` names the peer in tables and pictures, `colour` draws it. A peer
    is missing if one of the modules in `needs` cannot be imported.
    """

    name: str
    module: str
    label: str
    colour: str
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules in `needs` that cannot be imported here."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def load(self) -> Any:
        return import_module(self.module)


_Row = TypeVar("_Row", bound=Peer)


def find_rows(table: Sequence[_Row], names: Sequence[str]) -> tuple[_Row, ...]:
    """Return the rows of these names, in the order of the table. Raises InvalidArgument."""
    known = [peer.name for peer in table]
    for name in names:
        if name not in known:
            raise InvalidArgument(f"there is no peer {name!r}; the peers are {', '.join(known)}")
    return tuple(peer for peer in table if peer.name in names)
