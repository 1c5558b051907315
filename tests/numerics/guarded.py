"""Results between guards. Both hold NaN, so what is not written, or beyond the end, shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

_GUARD = 64


@contextmanager
def guarded(*shape: int, dtype: type = np.float32) -> Iterator[NDArray[np.generic]]:
    """Yield an array to write to; raise AssertionError if its surroundings were written."""
    size = int(np.prod(shape))
    nan = np.nan if dtype is np.float32 else 0x7FC0
    whole = np.full(size + 2 * _GUARD, nan, dtype)
    before = whole.tobytes()
    yield whole[_GUARD : _GUARD + size].reshape(shape)
    edge = _GUARD * whole.itemsize
    assert whole.tobytes()[:edge] == before[:edge]
    assert whole.tobytes()[-edge:] == before[-edge:]


def address(array: NDArray[np.generic] | None) -> int:
    """Return the address of an array; 0 for none."""
    return 0 if array is None else array.ctypes.data
