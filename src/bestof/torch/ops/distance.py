"""How far results are from what is right: in the mean, at most, and where they are no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot, inf, isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

# Norms between these come from squares that float32 holds. Of others, nothing is known: the squares
# of 1e-25 are 0, those of 1e25 infinite.
_SMALL, _LARGE = 1e-12, 1e15

PIECE = 2**18
"""The most elements that are compared at a time: 1 MiB of float32.

glibc maps much larger pieces one by one until the first is freed, and puts later ones on the heap,
between what stays. With 16 MiB, a tuned layer of 32 channels on 760 x 760 pixels had peaks of 528
to 575 MiB in six runs; with 1 MiB, of 454 in four and of 526 and 538 in two. Plain: 450.
"""


class Size(NamedTuple):
    """How large numbers are.

    norm: the root of the sum of their squares. peak: the largest magnitude. many: their count.
    """

    norm: float = 0.0
    peak: float = 0.0
    many: int = 0

    @property
    def rms(self) -> float:
        """The root mean square."""
        return self.norm / sqrt(max(self.many, 1))

    def joined(self, other: Size) -> Size:
        """Return the size of the numbers of both."""
        return Size(
            hypot(self.norm, other.norm),
            max(self.peak, other.peak),
            self.many + other.many,
        )


class Distance(NamedTuple):
    """How far one tensor is from another.

    same: whether both have the same NaN and infinities. off: the size of the differences of other
    elements; infinite where a difference is.
    """

    same: bool = True
    off: Size = Size()

    def joined(self, other: Distance) -> Distance:
        """Return the distance between the elements of both."""
        return Distance(self.same and other.same, self.off.joined(other.off))


def size_of(values: Tensor) -> Size:
    """Return the size of the elements that are numbers; NaN and infinities are not counted."""
    found = Size()
    for (part,) in pieces(values):
        found = found.joined(_size(finite(part)))
    return found


def distance(got: Tensor, right: Tensor) -> Distance:
    """Return how far tensors of one shape are apart, as `differences` defines."""
    found = Distance()
    for one, other in pieces(got, right):
        same, off = differences(one, other)
        found = found.joined(Distance(same, _size(off)))
    return found


def moved(got: Tensor, right: Tensor) -> Size:
    """Return the size of the differences that are numbers; tensors are of one shape."""
    found = Size()
    for one, other in pieces(got, right):
        found = found.joined(size_of(differences(one, other)[1]))
    return found


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield parts of tensors of one shape, which cover them: views of at most `PIECE` elements."""
    first = tensors[0]
    if first.numel() <= PIECE:
        yield tensors
        return
    shape = first.shape
    axis = max((one for one, size in enumerate(shape) if size > 1), key=first.stride)
    step = max(1, shape[axis] * PIECE // first.numel())
    for start in range(0, shape[axis], step):
        length = min(step, shape[axis] - start)
        yield from pieces(*(one.narrow(axis, start, length) for one in tensors))


def _size(values: Tensor) -> Size:
    count = values.numel()
    return Size(rms(values) * sqrt(count), peak(values), count)


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
