"""How far the outputs of an engine are from the model's."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor


def error_of(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of outputs, over the root mean square of the expected one.

    Infinite if outputs have other shapes, if one has NaN or infinity elsewhere, or if numbers that
    are no floating-point ones differ.
    """
    if [one.shape for one in got] != [one.shape for one in expected]:
        return inf
    return max((_error(*pair) for pair in zip(got, expected, strict=True)), default=0.0)


def _error(got: Tensor, expected: Tensor) -> float:
    if not expected.is_floating_point():
        return 0.0 if torch.equal(got, expected) else inf
    right = expected.double()
    one = got.double()
    finite = torch.isfinite(right)
    if not torch.equal(finite, torch.isfinite(one)) or not _alike(one[~finite], right[~finite]):
        return inf
    off, right = (one[finite] - right[finite]).abs(), right[finite]
    if not right.numel():
        return 0.0
    scale = float(right.square().mean().sqrt())
    return float(off.max()) / scale if scale else float(off.max())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors hold the same NaNs and infinities."""
    return torch.equal(one.nan_to_num(0.0), other.nan_to_num(0.0))
