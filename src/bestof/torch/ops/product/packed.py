"""Packed matrices, kept from one product to the next while nothing changes them."""

from __future__ import annotations

from time import perf_counter
from typing import TypeAlias

from torch import Tensor

from bestof.kernels import PackedMatrix, isa, pack_matrix
from bestof.kernels.addresses import fingerprint, packed_address
from bestof.torch.backends.shim import Shim
from bestof.torch.ops.memory_bound import room
from bestof.torch.ops.source_cache import SourceCache, Stamp

Key: TypeAlias = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""Algorithm, address, shape and strides."""


_REMEMBERED = 4096


class PackedMatrices(SourceCache[Key, PackedMatrix]):
    """Keeps packed matrices as long as the tensors that they were packed from are unchanged.

    `F.linear` multiplies by a transposed view, which ends with the call. So matrices are kept by
    address, shape and strides, and leave with the memory that the view lies in. At each call
    the version and the fingerprint of the matrix are compared. The fingerprint notices writes
    through `.data` and NumPy, and other tensors at the address. The packed matrices take at most
    `limit` bytes: the oldest leave first.

    They are lent to the `shim` for calls without Python, which compare the same.
    """

    def __init__(self, limit: int = 0) -> None:
        super().__init__(limit)
        self.shim: Shim | None = None
        self._met: dict[Key, int] = {}

    def get(self, b: Tensor, algorithm: str) -> PackedMatrix | None:
        """Return a float32 matrix [K, N] packed for `algorithm`.

        Returns None for matrices that cannot be watched (inference tensors, rows or columns with
        gaps), for those that take more than the limit, if the limit is 0, and if the memory bound
        has no room.
        """
        now = self._fingerprint_of(b)
        if now is None:
            return None
        key = _key(algorithm, b)
        stamp = Stamp(b._version, b.data_ptr(), now)
        found = self._find(key, b.untyped_storage(), stamp)
        if found is not None and found.isa == isa():
            return found
        if b.nbytes > min(room(), self.limit):
            return None  # else it would be packed at each call
        began = perf_counter()
        packed = pack_matrix(b.detach(), algorithm=algorithm)
        if packed.nbytes > self.limit:
            return None
        loan = None
        if self.shim is not None:
            lent = lending_key(algorithm, tuple(b.shape), b.stride())
            loan = self.shim.lend(
                packed, packed_address(packed), stamp.address, lent, stamp.version, now
            )
        self._keep_packed(key, b, stamp, packed, packed.nbytes, loan, began)
        return packed

    def meets_again(self, b: Tensor, algorithm: str) -> bool:
        """Return whether a matrix that is not packed is the one that it was at the last question.

        A matrix that changes at every product is thus never packed once its problem is settled.
        """
        now = self._fingerprint_of(b)
        if now is None:
            return False
        key = _key(algorithm, b)
        before = self._met.pop(key, None)
        if before == now:
            return True
        if len(self._met) >= _REMEMBERED:
            self._met.clear()
        self._met[key] = now
        return False

    def drop(self, shape: tuple[int, int]) -> None:
        """Forget the matrices of a shape."""
        for key in list(self._kept):
            if key[2] == shape:
                self._kept.pop(key, None)

    def clear(self) -> None:
        """Forget all entries, and what was met."""
        super().clear()
        self._met.clear()

    def _fingerprint_of(self, b: Tensor) -> int | None:
        is_dense = b.is_contiguous() or b.t().is_contiguous()
        if self.limit <= 0 or not is_dense or b.is_inference():  # which has no version
            return None
        return fingerprint(b.data_ptr(), b.nbytes)


def lending_key(algorithm: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number above 0 by which the shim finds matrices of this shape and layout."""
    return hash((algorithm, shape, strides)) % (1 << 62) + 1


def _key(algorithm: str, b: Tensor) -> Key:
    return algorithm, b.data_ptr(), tuple(b.shape), b.stride()
