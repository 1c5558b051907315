"""Packed weights, kept from one forward pass to the next."""

from __future__ import annotations

from time import perf_counter
from typing import TypeAlias

import torch
from torch import Tensor

from bestof.kernels import PackedWeights, isa, pack_weights
from bestof.kernels.addresses import packed_address
from bestof.torch.backends.fingerprint import fingerprint_of
from bestof.torch.backends.shim import Shim
from bestof.torch.ops.memory_bound import room
from bestof.torch.ops.source_cache import SourceCache, Stamp

Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str, int]
"""Address, shape and strides of the tensor, the algorithm and the number of groups."""


class PackedWeightsCache(SourceCache[Key, PackedWeights]):
    """Keeps packed weights as long as the memory that they were packed from is unchanged.

    At each call the tensor's version, its address and its fingerprint are compared. The fingerprint
    notices writes through `.data` and NumPy, which raise no version. It takes 0.25 ms for 512 x 512
    filters of 3 x 3; packing them for F(4) takes more than ten times that. The packed weights take
    at most `limit` bytes: the oldest leave first. Packing a parameter for the first time is no
    part of a trial: for ResNet34's eleven layers of 256 channels, F(2) seemed to take 9.1 ms.

    If there is a `shim`, the packed weights are lent to it for calls that Python does not see.
    Those calls find them by address, key and version, and compare the fingerprint too.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.shim: Shim | None = None

    def get(self, weight: Tensor, algorithm: str, groups: int) -> PackedWeights | None:
        """Return the weights (K, C/g, R, S) packed for `algorithm`.

        Returns None for weights that cannot be watched (inference tensors, strides that are not
        dense), if the limit is 0, and if the memory bound has no room.
        """
        if self.limit <= 0 or weight.is_inference():  # which has no version
            return None
        now = fingerprint_of(weight)
        if now is None:
            return None
        rows = weight.detach().permute(0, 2, 3, 1)
        stamp = Stamp(weight._version, weight.data_ptr(), now)
        key = stamp.address, tuple(weight.shape), weight.stride(), algorithm, groups
        found = self._find(key, weight.untyped_storage(), stamp)
        if found is not None and found.isa == isa():
            return found
        if weight.nbytes > room():
            return None  # else they would be packed at each call
        began = perf_counter()
        packed = pack_weights(rows.float().contiguous(), algorithm, groups=groups)
        if packed.nbytes <= self.limit:
            loan = None
            if self.shim is not None and weight.dtype is torch.float32:
                lent = lending_key(algorithm, groups, tuple(weight.shape)) + rows.is_contiguous()
                loan = self.shim.lend(
                    packed, packed_address(packed), stamp.address, lent, stamp.version, now
                )
            self._keep_packed(key, weight, stamp, packed, packed.nbytes, loan, began)
        return packed


def lending_key(algorithm: str, groups: int, shape: tuple[int, ...]) -> int:
    """Return the even number above 0 by which the shim finds weights of this shape.

    Weights in channels last are lent by the number after it.
    """
    return 2 * (hash((algorithm, groups, shape)) % (1 << 62)) + 2
