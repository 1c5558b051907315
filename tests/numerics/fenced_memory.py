"""Arrays that end where the memory of the process ends."""

from __future__ import annotations

import ctypes
from mmap import PAGESIZE, mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def at_the_end(values: NDArray[Number]) -> NDArray[Number]:
    """Return a copy, its last byte followed by a page that may not be read."""
    pages = -(-values.nbytes // PAGESIZE) + 1
    area = mmap(-1, pages * PAGESIZE)  # lives as long as the array
    whole = np.frombuffer(area, np.uint8)
    end = (pages - 1) * PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + end), PAGESIZE, 0) == 0
    copy: NDArray[Any] = whole[end - values.nbytes : end].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
