"""A row of a catalogue: one implementation of one pass of a convolution, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from bestof.torch.accuracy import Accuracy
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.shim import NativeConvolution


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """How far a result may be from the float64 one, both relative to the root mean square of the latter.

    `rms` bounds the root mean square of the error, `maximum` its largest magnitude.
    """

    rms: float
    maximum: float

    def scaled(self, channels: int, dtype: str) -> ErrorBound:
        """The bound for a sum over that many channels (unchanged up to 512, then by the square root) and dtype."""
        factor = max(1.0, sqrt(channels / 512))
        factor *= torch.finfo(getattr(torch, dtype)).eps / torch.finfo(torch.float32).eps
        return ErrorBound(self.rms * factor, self.maximum * factor)

    def rounded(self) -> ErrorBound:
        """The bound after a result of this one is rounded to bfloat16."""
        return ErrorBound(self.rms + ROUNDED.rms, self.maximum + ROUNDED.maximum)


ROUNDED = ErrorBound(rms=2**-8, maximum=10 * 2**-8)
"""One rounding to bfloat16, whose 8 bits err by 2^-8 of a number at most; by 2^-9.4, root mean square, where there are
many. No element of a result is 10 times the root mean square of all."""

BFLOAT16_INSIDE = ErrorBound(rms=sqrt(3) * 2**-8, maximum=10 * sqrt(3) * 2**-8)
"""Both operands and the result rounded to bfloat16, the sums in float32: three independent errors. Where nothing
cancels, those of the terms add up as the terms do; by 2^-8.5 where there are many."""

DIRECT = ErrorBound(rms=1e-6, maximum=1e-5)
SPECTRAL = ErrorBound(rms=2e-6, maximum=2e-5)


def summation_bound(terms: int, dtype: str) -> ErrorBound:
    """The bound of sums that are taken term by term, as PyTorch's own kernels may: nothing better is ours to promise.

    A partial sum of k random terms of magnitude 1 is about sqrt(k) and is rounded by u times that at most, so that
    the errors of n of them add up to u sqrt(n^2 / 2); a uniform error has a third of the square of its limit, and
    the result is about sqrt(n): u sqrt(n / 6). Measured on oneDNN in channels last: two thirds of it at 4608 terms.
    Not below DIRECT; the maximum stands to it as there.
    """
    growth = torch.finfo(torch.float32).eps / 2 * sqrt(terms / 6)
    rms = max(DIRECT.rms, growth)
    return ErrorBound(rms, rms * DIRECT.maximum / DIRECT.rms).scaled(1, dtype)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One implementation. `supports` is the only polite refusal: where it says yes, the function answers.

    The function never changes its arguments, and returns a tensor of its own with the shape, dtype and strides that
    PyTorch would return. Arguments: forward (originals, input, weight, bias, problem), input gradient (originals,
    grad_output, weight, problem), weight gradient (originals, grad_output, input, problem).

    `bound` is None where PyTorch's own kernels do the sums: see `summation_bound`. `estimate` tells before the first
    call what one will cost, in the unit of `estimate.py`; without it the alternative is always tried. `accuracy` is the
    strictest level that allows it. `compiled` makes what computes a problem without Python, where that can be.
    """

    name: str
    function: Callable[..., Tensor]
    supports: Callable[[ConvProblem], bool]
    bound: ErrorBound | None
    estimate: Callable[[ConvProblem], float] | None = None
    accuracy: Accuracy = "float32"
    compiled: Callable[[ConvProblem], NativeConvolution] | None = None
