"""Compares an alternative's result with PyTorch's own; where they disagree, float64 decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.torch.convolution.alternative import ErrorBound
from bestof.torch.distance import differences, finite, peak, rms

# Promises hold for random operands. Where float64 decides, correlated ones may err by so many times
# more: sums of one sign err by u sqrt(n) / 3 of themselves, random ones by u sqrt(n / 6).
_SLACK = 4.0

SUMS_IN_BFLOAT16 = 2.0**16
"""What is forgiven to kernels that may sum in bfloat16: its unit over that of float32."""

_TINY = 1e-37  # smaller numbers have fewer digits, or none


class Scale(NamedTuple):
    """What errors are relative to: bounds of the rms and of the largest magnitude of results.

    They are taken over the magnitudes of the terms, so they hold where terms cancel.
    """

    rms: float
    peak: float


class Side(NamedTuple):
    """A result, and the error that its sums promise relative to a `Scale`.

    The result is rounded once to its type in addition. forgiven: where float64 decides, how many
    times the bound a result may err.
    """

    result: Tensor
    bound: ErrorBound
    forgiven: float = _SLACK


class Finding(NamedTuple):
    """In what way each result is wrong; None if it is right.

    tells: whether the comparison can tell a wrong result from a right one.
    """

    wrong: str | None = None
    reference_wrong: str | None = None
    tells: bool = True


def compare(got: Side, expected: Side, scale: Scale, exact: Callable[[], Tensor]) -> Finding:
    """Return which of two results is wrong.

    Results that differ by no more than both promise are right. NaN and infinities must lie in the
    same places. `exact` returns the result of the same operands in float64; it is called if the
    results disagree.
    """
    mine, theirs = got.result, expected.result
    if mine.shape != theirs.shape or mine.dtype is not theirs.dtype:
        return Finding(
            f"expected {theirs.dtype} {tuple(theirs.shape)}; got {mine.dtype} {tuple(mine.shape)}"
        )
    if not theirs.numel():
        return Finding()
    numbers = finite(theirs)
    scale = Scale(max(scale.rms, rms(numbers)), max(scale.peak, peak(numbers)))
    tells = scale.rms > 0 and 2 * numbers.numel() >= theirs.numel()
    both = ErrorBound(
        got.bound.rms + expected.bound.rms, got.bound.maximum + expected.bound.maximum
    )
    if _complaint(mine, theirs, both, scale) is None:
        return Finding(tells=tells)
    return _decided(got, expected, scale, exact())


def _decided(got: Side, expected: Side, scale: Scale, right: Tensor) -> Finding:
    """Return which of two results is wrong, by that of float64.

    If both are farther from it than they promise, and about as far, the operands explain it: their
    terms cancel more than a `Scale` tells.
    """
    numbers = finite(right)
    scale = Scale(max(scale.rms, rms(numbers)), max(scale.peak, peak(numbers)))
    reference_wrong = _complaint(expected.result, right, _forgiving(expected), scale)
    if reference_wrong is not None:  # then the size of that result says nothing
        scale = Scale(rms(numbers), peak(numbers))
    wrong = _complaint(got.result, right, _forgiving(got), scale)
    if wrong is not None and reference_wrong is not None:
        (same, mine), (too, theirs) = (
            differences(got.result, right),
            differences(expected.result, right),
        )
        if same and too and rms(mine) <= _SLACK * rms(theirs):
            return Finding()
    return Finding(wrong, reference_wrong)


def _forgiving(side: Side) -> ErrorBound:
    return ErrorBound(side.forgiven * side.bound.rms, side.forgiven * side.bound.maximum)


def _complaint(got: Tensor, right: Tensor, bound: ErrorBound, scale: Scale) -> str | None:
    """Return how a result differs from the right one, in words; None if the bound explains it."""
    same, off = differences(got, right)
    if not same:
        return "NaN or infinity lies elsewhere than it should"
    eps, numbers = float(torch.finfo(got.dtype).eps), finite(right)
    for name, error, allowed in (
        ("rms", rms(off), bound.rms * scale.rms + eps * rms(numbers)),
        ("in an element", peak(off), bound.maximum * scale.peak + eps * peak(numbers)),
    ):
        if not error <= allowed + _TINY:
            return f"off by {error:.3g} {name}, where {allowed:.3g} is allowed"
    return None


def energies(values: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the sums of squares along axes in float64; NaN and infinities count as 0."""
    kept = tuple(axes)
    sums = (values if values.dtype is torch.float64 else values.float()).square().sum(kept)
    if isfinite(peak(sums)):
        return sums.double()
    return torch.nan_to_num(values, 0.0, 0.0, 0.0).double().square().sum(kept)


def root(value: float | Tensor) -> float:
    """Return the square root of a sum of squares."""
    return sqrt(float(value))


def made_up(operands: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return normal numbers with the shapes, types and strides of operands.

    Operands that tell nothing, such as zeros, are replaced by these. The random numbers of the
    program are left alone.
    """
    return [None if one is None else _made_up(one) for one in operands]


def _made_up(one: Tensor) -> Tensor:
    if not one.is_floating_point() or 0 in one.stride():
        return one
    generator = torch.Generator(one.device).manual_seed(one.numel())
    new = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
    return new.normal_(generator=generator)
