"""Lowered matrices on their way from a forward pass to its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import Tensor

# Backward passes ask in reverse order, so where this is not enough the first layers of a network build theirs again.
_LIMIT_BYTES = 2**30


class _Kept(NamedTuple):
    source: weakref.ref[Tensor]
    version: int
    matrix: Tensor


class KeptMatrices:
    """Keeps a matrix as long as the very tensor that it was made from: a forward whose backward never comes leaks
    nothing, for the graph is what keeps that tensor alive.

    Autograd hands the backward pass the tensor object of the forward pass, unless hooks on saved tensors replace it;
    these find nothing here, and build the matrix again. Tensors that the program itself holds (batches in a list, each
    evaluated with gradients on) are bounded by `limit` bytes: the oldest matrices leave.

    Takes no lock, for a weak reference may be cleared at any place: each step is one operation on a dictionary. Where
    two threads meet, a matrix may be lost, which costs time, but none is ever given for another.
    """

    def __init__(self, limit: int = _LIMIT_BYTES) -> None:
        self._limit = limit
        self._kept: dict[tuple[int, Hashable], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def entries(self) -> dict[Any, Any]:
        """What is kept, always in this very dict: for who asks for its length without the interpreter's lock."""
        return self._kept

    @property
    def size(self) -> int:
        """Bytes that the matrices take."""
        return sum(kept.matrix.nbytes for kept in list(self._kept.values()))

    def keep(self, source: Tensor, geometry: Hashable, matrix: Tensor) -> None:
        """Keep what was made from `source`; `geometry` is what the matrix depends on beside the values."""
        if (
            source.is_inference() or matrix.nbytes > self._limit
        ):  # no backward pass follows; or none could be kept
            return
        key = (id(source), geometry)
        kept = self._kept

        def forget(source: weakref.ref[Tensor]) -> None:
            found = kept.get(key)
            if found is not None and found.source is source:
                kept.pop(key, None)

        kept.pop(key, None)  # so that it is the youngest
        kept[key] = _Kept(weakref.ref(source, forget), source._version, matrix)
        excess = self.size - self._limit
        for old, entry in list(kept.items()):
            if excess <= 0:
                break
            kept.pop(old, None)
            excess -= entry.matrix.nbytes

    def take(self, source: Tensor, geometry: Hashable) -> Tensor | None:
        """The matrix of `source`, which is then no longer kept; None where there is none, or the source has changed."""
        found = self._kept.pop((id(source), geometry), None)
        if found is None or found.source() is not source or found.version != source._version:
            return None
        return found.matrix

    def drop(self, source: Tensor, geometry: Hashable) -> None:
        """Forget the matrix of `source`: it was not made for the forward pass that now runs."""
        if self._kept:
            self._kept.pop((id(source), geometry), None)

    def clear(self) -> None:
        """Free every matrix."""
        self._kept.clear()
