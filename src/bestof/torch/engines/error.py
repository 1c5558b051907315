"""How far the outputs of an engine may be from the model's in float64."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from bestof.accuracy import Accuracy

# The largest difference from PyTorch's outputs, in units of their root mean square. Engines that
# sum in another order, or use Winograd's algorithms, differ by 1e-5 to 1e-4 in float32 networks of
# up to 150 layers. A wrong border, a lost bias or bfloat16 inside shows at 1e-2.
FLOAT32 = 2e-3
# bfloat16 has 8 bits. Half a unit in the last place is 2^-9, and random errors grow with the square
# root of the number of layers. A network that magnifies errors may lose 1.5 times what PyTorch's
# own autocast loses: a ResNet50 of random weights loses 0.12 by autocast and 0.10 by bestof.
RELAXED = 5e-2
OVER_AUTOCAST = 1.5
# Of PyTorch's own error, where a network magnifies errors: those of F(4) are ten times as large.
_OVER_EAGER = 10.0


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


def allowed_error(accuracy: Accuracy, eager: float, autocast: float | None, halves: bool) -> float:
    """Return the largest error within a level of accuracy.

    eager, autocast: the errors of PyTorch itself, and under its autocast to bfloat16 (None if it
    does not run). halves: the model itself computes in bfloat16 or float16.
    """
    allowed = max(FLOAT32, _OVER_EAGER * eager)
    if accuracy == "relaxed" or halves:
        allowed = max(allowed, RELAXED, OVER_AUTOCAST * (autocast or 0.0))
    return allowed


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors hold the same NaNs and infinities."""
    return torch.equal(one.nan_to_num(0.0), other.nan_to_num(0.0))
