"""Weights as a native algorithm wants them, kept from one forward pass to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.kernels import PackedWeights, isa, pack_weights
from bestof.kernels.addresses import fingerprint, packed_address
from bestof.torch.shim import Loan, Shim


class _Kept(NamedTuple):
    source: weakref.ref[Tensor]
    version: int
    address: int
    fingerprint: bytes
    packed: PackedWeights
    loan: Loan | None  # ends when this does


class PackedWeightsCache:
    """Keeps what was packed as long as the very tensor that it was packed from, and as its values stand still.

    They do where its version, its address and a fingerprint agree: programs also write to weights through `.data`,
    which no version tells. Reading the weights for the fingerprint takes 0.25 ms where packing 512 x 512 filters of
    3 x 3 for F(4) takes ten times that and more. Takes at most `limit` bytes: the oldest leave.

    What is kept is lent to `shim`, where there is one, for calls that Python does not see: these find it by address,
    key and version, and compare the fingerprint as well.

    Takes no lock, for a weak reference may be cleared at any place: each step is one operation on a dictionary. Where
    two threads meet, weights may be packed twice.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shim: Shim | None = None
        self._kept: dict[tuple[int, str, int], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that the packed weights take."""
        return sum(kept.packed.nbytes for kept in list(self._kept.values()))

    def get(self, weight: Tensor, algorithm: str, groups: int) -> PackedWeights | None:
        """The weights (K, C/g, R, S) packed for `algorithm`; None where they cannot be watched, or none may be kept."""
        if self.limit <= 0 or weight.is_inference():  # which has no version
            return None
        rows = weight.detach().permute(0, 2, 3, 1)
        dense = rows if rows.is_contiguous() else weight.detach()
        if not dense.is_contiguous():
            return None
        key = (id(weight), algorithm, groups)
        found = self._kept.get(key)
        now = _fingerprint(dense)
        if (
            found is not None
            and found.source() is weight
            and found.version == weight._version
            and found.address == weight.data_ptr()
            and found.packed.isa == isa()
            and found.fingerprint == now
        ):
            return found.packed
        version, address = weight._version, weight.data_ptr()
        packed = pack_weights(rows.float().contiguous(), algorithm, groups=groups)
        if packed.nbytes <= self.limit:
            loan = None
            if self.shim is not None and weight.dtype is torch.float32:
                lent = lending_key(algorithm, groups, tuple(weight.shape)) + (dense is rows)
                loan = self.shim.lend(packed, packed_address(packed), address, lent, version, now)
            self._keep(
                key,
                _Kept(weakref.ref(weight, self._forget(key)), version, address, now, packed, loan),
            )
        return packed

    def clear(self) -> None:
        """Free them all."""
        self._kept.clear()

    def _keep(self, key: tuple[int, str, int], entry: _Kept) -> None:
        kept = self._kept
        kept.pop(key, None)  # so that it is the youngest
        kept[key] = entry
        excess = self.size - self.limit
        for old, other in list(kept.items()):
            if excess <= 0:
                break
            kept.pop(old, None)
            excess -= other.packed.nbytes

    def _forget(self, key: tuple[int, str, int]) -> Callable[[weakref.ref[Tensor]], None]:
        kept = self._kept

        def forget(source: weakref.ref[Tensor]) -> None:
            found = kept.get(key)
            if found is not None and found.source is source:
                kept.pop(key, None)

        return forget


def lending_key(algorithm: str, groups: int, shape: tuple[int, ...]) -> int:
    """By which weights of this shape are lent for an algorithm: an even number, not 0, the next one where they were
    packed from rows."""
    return 2 * (hash((algorithm, groups, shape)) % (1 << 62)) + 2


def _fingerprint(dense: Tensor) -> bytes:
    filters = dense.reshape(dense.shape[0], -1).float()
    return fingerprint(filters.data_ptr(), *filters.shape)
