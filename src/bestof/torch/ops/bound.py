"""The error that a row promises, and how far one element can reach."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch

from bestof.torch.ops.dtypes import is_rounded

Reach = Literal["own", "tile", "image"]
"""How far NaN, infinity or the rounding of one huge element can reach by an algorithm: the results
that read the element, those of a tile, or those of an image. At the default accuracy, a row that
reaches beyond its own results looks at its operands first, and leaves the call to PyTorch's own
kernel if an element stands out."""


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """A bound of the error against float64, relative to the rms of the float64 result.

    `rms` bounds the rms of the error, `maximum` its largest magnitude.
    """

    rms: float
    maximum: float

    def plus(self, other: ErrorBound) -> ErrorBound:
        """Return the bound of the sum of two errors."""
        return ErrorBound(self.rms + other.rms, self.maximum + other.maximum)

    def scaled(self, channels: int, dtype: str) -> ErrorBound:
        """Return the bound for a dtype and for sums over so many channels.

        Above 512 channels it grows with their square root.
        """
        factor = max(1.0, sqrt(channels / 512))
        factor *= torch.finfo(getattr(torch, dtype)).eps / torch.finfo(torch.float32).eps
        return ErrorBound(self.rms * factor, self.maximum * factor)

    def rounded(self, dtype: str) -> ErrorBound:
        """Return the bound after the result is rounded to a dtype; the same if sums are of it."""
        if not is_rounded(dtype):
            return self
        unit = torch.finfo(getattr(torch, dtype)).eps / torch.finfo(torch.bfloat16).eps
        return self.plus(ErrorBound(unit * ROUNDED.rms, unit * ROUNDED.maximum))


ROUNDED = ErrorBound(rms=2**-8, maximum=10 * 2**-8)
"""One rounding to bfloat16. Its 8 bits err by at most 2^-8 of a number; the rms over many
numbers is 2^-9.4. No element of a result is 10 times the rms of all."""

BFLOAT16_INSIDE = ErrorBound(rms=sqrt(3) * 2**-8, maximum=10 * sqrt(3) * 2**-8)
"""Both operands and the result rounded to bfloat16, sums in float32: three independent errors. If
nothing cancels, the errors of the terms add up as the terms do; the rms over many is 2^-8.5."""

TF32_INSIDE = ErrorBound(rms=2**-10, maximum=10 * 2**-10)
"""Operands of 11 bits, as of TF32: the error of one rounding, for both."""

DIRECT = ErrorBound(rms=1e-6, maximum=1e-5)
SPECTRAL = ErrorBound(rms=2e-6, maximum=2e-5)

_MODES_OF_ONEDNN = "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"


def float32_inside() -> ErrorBound:
    """Return what PyTorch's own products of float32 may lose beside the rounding of their sums.

    A program lets oneDNN round operands to bfloat16 or TF32 by
    `torch.set_float32_matmul_precision`, by `torch.backends.mkldnn`, or by the environment.
    """
    found = {torch._C._get_fp32_precision_getter("mkldnn", one) for one in ("matmul", "conv")}
    found.update(os.environ.get(one, "").lower() for one in _MODES_OF_ONEDNN)
    if not found.isdisjoint(("bf16", "any")):
        return BFLOAT16_INSIDE
    return ErrorBound(0.0, 0.0) if found.isdisjoint(("tf32", "f16")) else TF32_INSIDE


def summation_bound(terms: int, dtype: str) -> ErrorBound:
    """Return the bound of sums that are taken term by term, as PyTorch's own kernels may take them.

    A partial sum of k random terms of magnitude 1 is about sqrt(k), and rounding it errs by at most
    u sqrt(k). The errors of n partial sums add up to u sqrt(n^2 / 2). A uniform error has a third
    of the square of its limit, and the result is about sqrt(n), which gives u sqrt(n / 6). oneDNN
    in channels last reached two thirds of it at 4608 terms. The bound is at least DIRECT, and has
    the same ratio of maximum to rms.
    """
    growth = torch.finfo(torch.float32).eps / 2 * sqrt(terms / 6)
    rms = max(DIRECT.rms, growth)
    return ErrorBound(rms, rms * DIRECT.maximum / DIRECT.rms).scaled(1, dtype)
