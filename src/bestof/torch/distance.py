"""How far results are from what is right: in the mean, at most, and where they are no numbers."""

from __future__ import annotations

from math import inf, isfinite, sqrt

import torch
from torch import Tensor

# Norms between these come from squares that float32 holds. Of others, nothing is known: the squares
# of 1e-25 are 0, those of 1e25 infinite.
_SMALL, _LARGE = 1e-12, 1e15


def rms(values: Tensor) -> float:
    """Return the root mean square; infinity or NaN if an element is."""
    norm = float(torch.linalg.vector_norm(_single(values)))
    if not _SMALL < norm < _LARGE:
        largest = peak(values)
        if not 0 < largest < inf:
            return largest
        norm = largest * float(torch.linalg.vector_norm(values.double() / largest))
    return norm / sqrt(max(values.numel(), 1))


def peak(values: Tensor) -> float:
    """Return the largest magnitude; infinity or NaN if an element is.

    The least and the largest element take a twelfth of the time of `vector_norm` (590,000 numbers).
    """
    if not values.numel():
        return 0.0
    if not values.is_contiguous():  # it copies what does not lie in the order of the axes
        values = values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))
    low, high = torch.aminmax(values)
    return max(-float(low), float(high))  # both are NaN if an element is


def finite(values: Tensor) -> Tensor:
    """Return the elements that are numbers, in one row if some are not."""
    return values if isfinite(peak(values)) else values[torch.isfinite(values)]


def differences(got: Tensor, right: Tensor) -> tuple[bool, Tensor]:
    """Return (whether both have the same NaN and infinities, the differences of other elements).

    NaN is the same as NaN only, and an infinity as one of the same sign. Both are tensors of one
    shape; `right` may be of a wider type, and is rounded to that of `got` to compare infinities.
    """
    off = _single(got) - _single(right)
    if isfinite(peak(off)):
        return True, off
    numbers = torch.isfinite(got) & torch.isfinite(right)
    one, other = got[~numbers], right[~numbers].to(got.dtype)
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    return bool(same.all()), off[numbers]


def _single(values: Tensor) -> Tensor:
    """Return values as float32, or as they are if wider: bfloat16 would round what is summed."""
    return values if values.dtype is torch.float64 else values.float()


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors have the same type, shape and elements; NaN is the same as NaN."""
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(
        ((one == other) | (torch.isnan(one) & torch.isnan(other))).all()
    )
