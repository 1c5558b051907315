"""Large results whose memory is used again, because fresh memory costs a page fault every 4 KiB.

PyTorch allocates by malloc. glibc returns blocks above 32 MiB to the system when they are freed, so
each step of a training pays for the same pages again. For the gradient of a focal loss of 21.9
million elements this took 60 of 99 ms.

The memory is lent: it comes back when the last tensor that shares it is freed. The process keeps
one block at most. It is the largest of the last two that came back.
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# glibc keeps smaller blocks by itself: its M_MMAP_THRESHOLD grows to at most 32 MiB.
_LEAST_BYTES = 32 << 20


class ReusedMemory:
    """Memory for one large float32 tensor after another. Threads may share an instance."""

    def __init__(self) -> None:
        # A list, because `pop` hands a block to one thread only.
        self._free: list[NDArray[np.float32]] = []

    def empty_like(self, x: Tensor) -> Tensor:
        """Return a new contiguous float32 tensor like x, which is one. Its values are arbitrary."""
        count = x.numel()
        if 4 * count < _LEAST_BYTES:
            return torch.empty_like(x)
        try:
            block = self._free.pop()
        except IndexError:
            block = _new_block(count)
        if block.size < count:
            block = _new_block(count)
        # The storage of the tensor keeps this view alive, and nothing else does.
        lent = block[:count]
        weakref.finalize(lent, self._take_back, block).atexit = False
        return torch.from_numpy(lent).view(x.shape)

    def _take_back(self, block: NDArray[np.float32]) -> None:
        # No lock: this also runs within a garbage collection, where the thread may hold the lock.
        # Only what `pop` returned is put back, so that no block is in two hands.
        try:
            other = self._free.pop()
        except IndexError:
            other = block
        self._free.append(max(block, other, key=len))
        while len(self._free) > 1:  # threads may have added one each
            with suppress(IndexError):
                self._free.pop(0)


def _new_block(count: int) -> NDArray[np.float32]:
    # Python's default, MAP_SHARED, would share the memory with forked processes.
    pages = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.float32)
