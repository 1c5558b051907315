"""Lowered matrices on their way from a forward pass to its backward pass."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class KeptMatrices:
    """Keeps a matrix as long as the tensor that it was made from: a forward whose backward never comes leaks nothing.

    A tensor is known by its memory and version, because autograd hands the backward pass another Python object.
    """

    def __init__(self) -> None:
        self._matrices: dict[Hashable, tuple[StorageWeakRef, Tensor]] = {}
        self._lock = threading.Lock()

    def keep(self, source: Tensor, matrix: Tensor) -> None:
        """Keep what was made from `source`; what was made from tensors that are gone is freed."""
        with self._lock:
            for key in [key for key, (storage, _) in self._matrices.items() if storage.expired()]:
                del self._matrices[key]
            self._matrices[_identity(source)] = (StorageWeakRef(source.untyped_storage()), matrix)

    def take(self, source: Tensor) -> Tensor | None:
        """The matrix of `source`, which is then no longer kept; None where there is none."""
        with self._lock:
            storage, matrix = self._matrices.pop(_identity(source), (None, None))
        return None if storage is None or storage.expired() else matrix

    def clear(self) -> None:
        """Free every matrix."""
        with self._lock:
            self._matrices.clear()


def _identity(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor._version, tuple(tensor.shape), tensor.stride()
