"""What the comparison of one result of a step shows."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from bestof.torch.ops.distance import Size

# Of one element, over the rms that is allowed and how far elements stand out. Kernels promise 10.
_SINGLE = 32.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one run of a kernel shows.

    same: whether NaN and infinities lie where they should. off, allowed: the rms error of the other
    elements. single: the largest error. stands_out: how far elements stand out of their rms. shows:
    whether the run shows enough of the kernel. It does not if NaN, infinity or a bias hides
    elements, if all are 0, or if PyTorch's own error is so large that the kernel's could be.
    finite: whether there is neither NaN nor infinity. explains: whether PyTorch's error is small.
    terms: how many numbers a result sums. scale: what the promised error of a layer is relative to.
    """

    same: bool
    off: float
    allowed: float
    single: float
    stands_out: float
    shows: bool
    finite: bool
    terms: int
    explains: bool = True
    scale: float = 0.0

    def complaint(self, operands: str, alike: bool = False) -> str | None:
        """Return what is wrong, in words; None if nothing is.

        alike: whether all roundings of a sum may go one way. For n terms they then err by the
        square root of n times as much as at random, for which errors are promised.
        """
        allowed = self.allowed * (sqrt(self.terms) if alike else 1.0)
        single_allowed = _SINGLE * allowed * self.stands_out
        if not self.same:
            return f"puts NaN or infinity elsewhere than PyTorch does, on {operands}"
        if not self.off <= allowed:
            return f"is off by {self.off:.2g} rms where {allowed:.2g} is allowed on {operands}"
        if not self.single <= single_allowed:
            return (
                f"is off by {self.single:.2g} in an element where {single_allowed:.2g} is "
                f"allowed on {operands}"
            )
        return None


def stands_out(size: Size) -> float:
    """Return the largest magnitude over the rms, at least 1."""
    return max(1.0, size.peak / size.rms) if size.rms > 0 else 1.0
