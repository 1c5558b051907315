"""Compares an alternative's result with PyTorch's own; where they disagree, float64 decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.distance import Size, distance, peak, pieces, size_of

# Promises hold for random operands. Where float64 decides, correlated ones may err by so many times
# more: sums of one sign err by u sqrt(n) / 3 of themselves, random ones by u sqrt(n / 6).
_SLACK = 4.0

# PyTorch's own kernel is only taken out if it errs by so many times what is allowed: the program
# has its result without bestof. After a batch norm the gradients of a channel cancel, and weight
# gradients of oneDNN erred by 5 times that much. Broken kernels err by 1e4 times and more.
_KEPT = 32.0

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
    numbers = size_of(theirs)
    scale = Scale(max(scale.rms, numbers.rms), max(scale.peak, numbers.peak))
    tells = scale.rms > 0 and 2 * numbers.many >= theirs.numel()
    if _complaint(mine, theirs, numbers, got.bound.plus(expected.bound), scale) is None:
        return Finding(tells=tells)
    return _decided(got, expected, scale, exact())


def _decided(got: Side, expected: Side, scale: Scale, right: Tensor) -> Finding:
    """Return which of two results is wrong, by that of float64.

    If both are farther from it than they promise, and about as far, the operands explain it: their
    terms cancel more than a `Scale` tells.
    """
    numbers = size_of(right)
    widest = scale = Scale(max(scale.rms, numbers.rms), max(scale.peak, numbers.peak))
    reference_wrong = _complaint(expected.result, right, numbers, _forgiving(expected), scale)
    if reference_wrong is not None:  # then the size of that result says nothing
        scale = Scale(numbers.rms, numbers.peak)
    wrong = _complaint(got.result, right, numbers, _forgiving(got), scale)
    if wrong is not None and reference_wrong is not None:
        mine, theirs = distance(got.result, right), distance(expected.result, right)
        if mine.same and theirs.same and mine.off.rms <= _SLACK * theirs.off.rms:
            return Finding()
    if reference_wrong is not None:
        kept = _forgiving(expected._replace(forgiven=_KEPT * expected.forgiven))
        if _complaint(expected.result, right, numbers, kept, widest) is None:
            reference_wrong = None
    return Finding(wrong, reference_wrong)


def _forgiving(side: Side) -> ErrorBound:
    return ErrorBound(side.forgiven * side.bound.rms, side.forgiven * side.bound.maximum)


def _complaint(
    got: Tensor, right: Tensor, numbers: Size, bound: ErrorBound, scale: Scale
) -> str | None:
    """Return how a result differs from the right one, in words; None if the bound explains it.

    numbers: the size of the right one.
    """
    same, off = distance(got, right)
    if not same:
        return "NaN or infinity lies elsewhere than it should"
    numeric = torch.finfo(got.dtype)
    eps, tiny = float(numeric.eps), max(_TINY, float(numeric.smallest_normal * numeric.eps))
    for name, error, allowed in (
        ("rms", off.rms, bound.rms * scale.rms + eps * numbers.rms),
        ("in an element", off.peak, bound.maximum * scale.peak + eps * numbers.peak),
    ):
        if not error <= allowed + tiny:
            return f"off by {error:.3g} {name}, where {allowed:.3g} is allowed"
    return None


def overflowed(right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a float64 result, infinite where the dtype of the compared results has no number."""
    rounded = right.to(dtype)
    return torch.where(torch.isinf(rounded), rounded.double(), right)


def own_sums(dtype: torch.dtype) -> float:
    """Return what is forgiven to kernels that may sum in a dtype: its unit over that of float32."""
    return float(torch.finfo(dtype).eps / torch.finfo(torch.float32).eps)


def energies(values: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the sums of squares along axes in float64; NaN and infinities count as 0."""
    sums = _energies(values, axes, lambda part: part if _is_wide(part) else part.float())
    if isfinite(peak(sums)):
        return sums
    return _energies(values, axes, lambda part: torch.nan_to_num(part, 0.0, 0.0, 0.0).double())


def _energies(values: Tensor, axes: Sequence[int], converted: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sums of squares of converted values, some of which are squared at a time."""
    summed = tuple(axis % values.dim() for axis in axes)
    extents = [1 if axis in summed else size for axis, size in enumerate(values.shape)]
    sums = torch.zeros(extents, dtype=torch.float64, device=values.device)
    for part, into in pieces(values, sums.expand_as(values)):
        places = tuple(slice(1 if axis in summed else None) for axis in range(values.dim()))
        into[places].add_(converted(part).square().sum(summed, keepdim=True))
    return sums.squeeze(summed)


def _is_wide(values: Tensor) -> bool:
    return values.dtype is torch.float64


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
