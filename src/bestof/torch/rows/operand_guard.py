"""Keeps the operands of a call, and puts back what an alternative has changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.selection.interrupts import reraise_from_outside

# Operands of more bytes are not copied: of these, only changes that PyTorch counts are noticed.
_COPIED_BYTES = 64 * 2**20
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class OperandGuard:
    """Operands before an untrusted alternative runs, by copies and by versions."""

    def __init__(self, operands: Sequence[Tensor | None]) -> None:
        self._operands = [one for one in operands if one is not None]
        self._versions = [_version(one) for one in self._operands]
        self._places = [(one.shape, one.stride(), one.storage_offset()) for one in self._operands]
        size = sum(one.numel() * one.element_size() for one in self._operands)
        self._copies: list[Tensor] = []
        if size <= _COPIED_BYTES:
            try:
                self._copies = [one.clone() for one in self._operands]
            except RuntimeError:  # memory is short
                reraise_from_outside()

    @property
    def has_copies(self) -> bool:
        """Whether changed operands can be put back."""
        return len(self._copies) == len(self._operands)

    def complaint(self, results: Sequence[Tensor | None]) -> str | None:
        """Return in words how an alternative has changed its operands; None if they are unchanged.

        Changed operands are put back if there are copies.
        """
        memory = {_memory(one) for one in self._operands if one.numel()}
        if any(one is not None and one.numel() and _memory(one) in memory for one in results):
            return "the result shares memory with an operand"
        return "an operand was changed" if self.put_back() else None

    def put_back(self) -> bool:
        """Put changed operands back; return whether any was changed."""
        changed = any(
            before != _version(one)
            for before, one in zip(self._versions, self._operands, strict=True)
        )
        for place, one in zip(self._places, self._operands, strict=True):
            if place != (one.shape, one.stride(), one.storage_offset()):
                one.as_strided_(*place)
                changed = True
        for copy, one in zip(self._copies, self._operands, strict=False):
            if not _has_same_bits(copy, one):
                one.copy_(copy)
                changed = True
        return changed


def _version(one: Tensor) -> int:
    return 0 if one.is_inference() else one._version


def _memory(one: Tensor) -> int:
    return one.untyped_storage().data_ptr()


def _has_same_bits(one: Tensor, other: Tensor) -> bool:
    kind = _BITS.get(one.element_size())
    if kind is None or one.is_conj() or other.is_conj():
        return torch.equal(one, other)
    return torch.equal(one.view(kind), other.view(kind))
