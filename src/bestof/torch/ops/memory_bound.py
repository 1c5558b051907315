"""One bound on what rows take beside operands and results (`kernel.memory_mib`)."""

from __future__ import annotations

from math import inf
from typing import ClassVar, NamedTuple, Protocol
from weakref import ref


class Cache(Protocol):
    """What the bound needs of a cache."""

    holds: str

    @property
    def size(self) -> int:
        """Bytes that all values take."""

    def shrink(self, excess: float) -> None:
        """Forget the oldest entries, of so many bytes together."""


class Held(NamedTuple):
    """Bytes beside operands and results, and the most that they may be together; None: no bound.

    scratch: the most that one call of a row takes that was tried. weights: packed copies. matrices:
    kept from forward passes for backward passes.
    """

    scratch: int
    weights: int
    matrices: int
    limit: int | None


class _Process:
    limit: float = inf
    scratch = 0
    caches: ClassVar[list[ref[Cache]]] = []


def bound_memory(mib: int | None) -> None:
    """Let scratch and caches take so many MiB together from now on; None for no bound."""
    _Process.limit = inf if mib is None else mib << 20
    _shrink()


def watch(cache: Cache) -> None:
    """Count a cache from now on, as long as it lives."""
    _Process.caches.append(ref(cache, _Process.caches.remove))


def refusal(needed: int) -> str | None:
    """Return why a row that needs so many bytes is no candidate; None if it is."""
    if needed <= _Process.limit:
        return None
    return f"needs {-(-needed >> 20):,} MiB of {int(_Process.limit) >> 20:,} allowed"


def reserve(scratch: int) -> None:
    """Leave room for the scratch of a row that is tried. Caches give way.

    Kernels keep the largest scratch that they had, so it is never given back.
    """
    if scratch > _Process.scratch:
        _Process.scratch = scratch
        _shrink()


def room() -> float:
    """Return how many more bytes caches may keep."""
    if _Process.limit == inf:
        return inf
    return _Process.limit - _Process.scratch - sum(one.size for one in _caches())


def held() -> Held:
    """Return what is taken at present."""
    sizes = {"weights": 0, "matrices": 0}
    for one in _caches():
        sizes[one.holds] += one.size
    limit = None if _Process.limit == inf else int(_Process.limit)
    return Held(_Process.scratch, sizes["weights"], sizes["matrices"], limit)


def _caches() -> list[Cache]:
    return [cache for one in list(_Process.caches) if (cache := one()) is not None]


def _shrink() -> None:
    excess = -room()
    for one in _caches():
        if excess <= 0:
            return
        before = one.size
        one.shrink(excess)
        excess -= before - one.size
