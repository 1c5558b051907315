"""bfloat16 in NumPy, which has no such type: its bits as uint16, the upper half of a float32's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
UNIT = 2.0**-8
"""The largest relative error of rounding to its 8 bits."""


def rounded(values: NDArray[np.float32]) -> Bits:
    """Round to the nearest bfloat16, a tie to the even one, by distances in float64; no NaN."""
    below = values.view(np.uint32) >> 16  # towards zero
    above = below + 1
    with np.errstate(invalid="ignore"):  # the neighbour of infinity is no number
        low, high = (value_of(one.astype(np.uint16)).astype(np.float64) for one in (below, above))
        # Beyond the largest number, its neighbour is a step away as any other.
        step = low - value_of((below - 1).astype(np.uint16))
        high = np.where(np.isinf(high) & ~np.isinf(low), low + step, high)
        to_low, to_high = np.abs(values - low), np.abs(high - values)
        up = (to_high < to_low) | ((to_high == to_low) & (below % 2 == 1))
    return np.where(up & ~np.isinf(values), above, below).astype(np.uint16)


def value_of(bits: Bits) -> NDArray[np.float32]:
    """What the bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
