"""Lowered matrices, kept from a forward pass for its backward pass."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from bestof.entries import entries
from bestof.torch.backends.fingerprint import fingerprint_of
from bestof.torch.ops.source_cache import Owner, SourceCache, Stamp

# Backward passes ask in reverse order. If this is too small, the first layers of a network build
# their matrices again.
_LIMIT_BYTES = 2**30

# Forward passes after which the backward pass of a matrix will hardly come: an exception came in
# between. Few networks have more convolutions. If it comes all the same, it makes the matrix again.
_ABANDONED = 256
_LOOKED_AT = 32  # forward passes between two looks for such matrices


Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], Hashable]
"""Address, shape and strides of the tensor, and what the matrix depends on beside its values."""


class _Made(NamedTuple):
    """A matrix, and the number of the forward pass that made it."""

    matrix: Tensor
    number: int


class KeptMatrices(SourceCache[Key, _Made]):
    """Keeps lowered matrices, each for as long as the memory of the tensor that it was made from.

    The graph keeps the input of a forward pass alive, so a forward pass without a backward pass
    leaks nothing, if its input does not outlive it. A program may write each batch into the same
    memory: then the matrix leaves after about 256 forward passes. The backward pass finds it by the
    address of the input: each pass of a 1-D convolution makes a view of its own. If hooks on saved
    tensors replace the input, nothing is found, and the backward pass builds the matrix again.

    A matrix is returned only if its tensor's version and fingerprint are unchanged. So a write
    through `.data` between the passes is noticed. The matrices take at most `limit` bytes; the
    oldest are dropped first. This limits programs that hold their inputs, such as batches in a
    list.
    """

    holds = "matrices"

    def __init__(self, limit: int = _LIMIT_BYTES) -> None:
        super().__init__(limit)
        self._passes = 0  # forward passes since the first matrix was kept

    @property
    def entries(self) -> dict[Any, Any]:
        """The dict of all entries, always the same object: C++ reads its length without a lock."""
        return self._kept

    def keep(self, source: Tensor, geometry: Hashable, matrix: Tensor) -> None:
        """Keep the matrix of `source`; `geometry` is what the matrix depends on beside its values.

        Nothing is kept for an inference tensor, for a source that is not dense, or for a matrix
        above the limit.
        """
        if source.is_inference() or matrix.nbytes > self.limit:
            return
        stamp = _stamp(source)
        if stamp is not None:
            self._count()
            made = _Made(matrix, self._passes)
            self._keep(_key(source, geometry), _owner(source), stamp, made, matrix.nbytes)

    def take(self, source: Tensor, geometry: Hashable) -> Tensor | None:
        """Return the matrix of `source` and forget it; None if it is missing or outdated."""
        key = _key(source, geometry)
        if key not in self._kept:
            return None
        stamp = _stamp(source)
        made = None if stamp is None else self._find(key, _owner(source), stamp)
        self._kept.pop(key, None)
        return None if made is None else made.matrix

    def drop(self, source: Tensor, geometry: Hashable) -> None:
        """Drop the matrix of `source`, because the present forward pass did not make it.

        Drop those, too, whose backward pass will not come.
        """
        if self._kept:
            self._kept.pop(_key(source, geometry), None)
            self._count()

    def _count(self) -> None:
        self._passes += 1
        if self._passes % _LOOKED_AT == 0:
            for key, kept in entries(self._kept):
                if self._passes - kept.value.number > _ABANDONED:
                    self._kept.pop(key, None)


def _key(source: Tensor, geometry: Hashable) -> Key:
    return source.data_ptr(), tuple(source.shape), source.stride(), geometry


def _owner(source: Tensor) -> Owner:
    """Return with what the matrix of a tensor leaves: its memory, unless others share that.

    The batches of a data set that are slices of one tensor would pile up if it were their memory.
    """
    memory = source.untyped_storage()
    return memory if memory.nbytes() == source.nbytes else source


def _stamp(source: Tensor) -> Stamp | None:
    """Return the stamp of a tensor; None if it is not dense."""
    bits = fingerprint_of(source)
    return None if bits is None else Stamp(source._version, source.data_ptr(), bits)
