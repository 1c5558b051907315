"""One piece of memory for all values of a call, planned in advance."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 64  # floats: four cache lines, more than any kernel asks for
_HUGE = 2 * 2**20


@dataclass(slots=True)
class Buffer:
    """A value that lives from step `first` to step `last`, both included; `offset` is in floats."""

    floats: int
    first: int
    last: int
    offset: int = 0


def plan_offsets(buffers: Sequence[Buffer]) -> int:
    """Give each buffer its offset; return the number of floats needed in all.

    Buffers that live at the same time lie apart. The largest are placed first, each at the lowest
    place that is free during its life.
    """
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda one: (-one.floats, one.first)):
        offset = 0
        for other in sorted(placed, key=lambda one: one.offset):
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if offset + _rounded(buffer.floats) <= other.offset:
                break
            offset = max(offset, other.offset + _rounded(other.floats))
        buffer.offset = offset
        placed.append(buffer)
    return max((buffer.offset + _rounded(buffer.floats) for buffer in buffers), default=0)


def _rounded(floats: int) -> int:
    return -(-floats // _ALIGNMENT) * _ALIGNMENT


class Arena:
    """Zeroed memory, in huge pages if the system has them, which save page faults."""

    def __init__(self, floats: int) -> None:
        size = 4 * max(floats, 1)
        if size < 2 * _HUGE:
            # Memory of Python's: no operator that gets a wrong `out` can move it by a resize.
            own = bytearray(size + 4 * _ALIGNMENT)
            self._memory: Tensor = torch.frombuffer(own, dtype=torch.float32)
            skip = -(self._memory.data_ptr() // 4) % _ALIGNMENT
        else:
            # Python's default, MAP_SHARED, would share the memory with forked processes, and the
            # system has huge pages for private memory only.
            pages = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            self._memory = torch.frombuffer(pages, dtype=torch.float32)
            skip = (-self._memory.data_ptr() % _HUGE) // 4
        self._floats = self._memory[skip:]
        self._base = self._memory.untyped_storage().data_ptr()

    def holds(self, value: Tensor) -> bool:
        """Return whether a tensor lies in this memory."""
        return value.layout is torch.strided and value.untyped_storage().data_ptr() == self._base

    def view(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        channels_last: bool,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the tensor of a buffer: (N, C, H, W) if `channels_last`, else contiguous."""
        flat = self._floats[buffer.offset : buffer.offset + buffer.floats]
        flat = flat.view(dtype)[: torch.Size(shape).numel()]
        if not channels_last:
            return flat.view(list(shape))
        n, c, h, w = shape
        return flat.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))
