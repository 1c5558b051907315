"""Lowered matrices, kept from a forward pass for its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import Tensor

from bestof.torch.fingerprint import fingerprint_of

# Backward passes ask in reverse order. If this is too small, the first layers of a network build
# their matrices again.
_LIMIT_BYTES = 2**30


class _Kept(NamedTuple):
    source: weakref.ref[Tensor]
    version: int
    fingerprint: int
    matrix: Tensor


class KeptMatrices:
    """Keeps lowered matrices, each for as long as the tensor that it was made from.

    The graph keeps the input of a forward pass alive, so a forward pass without a backward pass
    leaks nothing. Autograd gives the backward pass the tensor object of the forward pass. If hooks
    on saved tensors replace it, nothing is found, and the backward pass builds the matrix again.

    A matrix is returned only if its tensor's version and fingerprint are unchanged. So a write
    through `.data` between the passes is noticed. The matrices take at most `limit` bytes; the
    oldest are dropped first. This limits programs that hold their inputs, such as batches in a
    list.

    There is no lock, because a weak reference may be cleared anywhere: each step is one operation
    on a dictionary. If two threads meet, a matrix may be lost, which only costs time.
    """

    def __init__(self, limit: int = _LIMIT_BYTES) -> None:
        self._limit = limit
        self._kept: dict[tuple[int, Hashable], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def entries(self) -> dict[Any, Any]:
        """The dict of all entries, always the same object: C++ reads its length without a lock."""
        return self._kept

    @property
    def size(self) -> int:
        """Bytes that the matrices take."""
        return sum(kept.matrix.nbytes for kept in list(self._kept.values()))

    def keep(self, source: Tensor, geometry: Hashable, matrix: Tensor) -> None:
        """Keep the matrix of `source`; `geometry` is what the matrix depends on beside its values.

        Nothing is kept for an inference tensor, for a source that is not dense, or for a matrix
        above the limit.
        """
        if source.is_inference() or matrix.nbytes > self._limit:
            return
        bits = fingerprint_of(source)
        if bits is None:
            return
        key = (id(source), geometry)
        kept = self._kept

        def forget(source: weakref.ref[Tensor]) -> None:
            found = kept.get(key)
            if found is not None and found.source is source:
                kept.pop(key, None)

        kept.pop(key, None)  # it becomes the youngest
        kept[key] = _Kept(weakref.ref(source, forget), source._version, bits, matrix)
        excess = self.size - self._limit
        for old, entry in list(kept.items()):
            if excess <= 0:
                break
            kept.pop(old, None)
            excess -= entry.matrix.nbytes

    def take(self, source: Tensor, geometry: Hashable) -> Tensor | None:
        """Return the matrix of `source` and forget it; None if it is missing or outdated."""
        found = self._kept.pop((id(source), geometry), None)
        if (
            found is None
            or found.source() is not source
            or found.version != source._version
            or found.fingerprint != fingerprint_of(source)
        ):
            return None
        return found.matrix

    def drop(self, source: Tensor, geometry: Hashable) -> None:
        """Drop the matrix of `source`, because the present forward pass did not make it."""
        if self._kept:
            self._kept.pop((id(source), geometry), None)

    def clear(self) -> None:
        self._kept.clear()
