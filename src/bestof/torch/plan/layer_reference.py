"""What a fused layer should compute, by PyTorch, and how far its algorithm may be from it."""

from __future__ import annotations

from math import inf, isfinite, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from bestof.torch.convolution.alternative import summation_bound
from bestof.torch.distance import finite, peak, rms
from bestof.torch.plan.activations import STEEPEST
from bestof.torch.plan.algorithms.algorithm import Algorithm
from bestof.torch.plan.algorithms.native import has_kernel_for
from bestof.torch.plan.algorithms.product import BFLOAT16
from bestof.torch.plan.algorithms.table import algorithm
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.injected_errors import error_of
from bestof.torch.plan.layer import Layer

_EPS = float(torch.finfo(torch.float32).eps)
_SQUARED_FLOATS = 2**22
_FEW_ROWS = 16  # a tile of a product at the most: its code differs with the number of rows
# Means of squares between these come from squares that float32 holds.
_SMALL, _LARGE = 1e-25, 1e30


def algorithm_of(step: ConvolutionStep) -> Algorithm | None:
    """Return the chosen algorithm of a layer; None while the choice is open."""
    return None if step.algorithm is None else algorithm(step.algorithm)


def compared_images(one: ConvolutionStep, images: int) -> list[int]:
    """Return the images, or rows, that are compared.

    All images are computed alike, so two of them show the algorithm's error. A few rows of a linear
    layer are each summed by code of their own, and any of them may be wrong.
    """
    few = one.problem.convolution.dtype == BFLOAT16 and images <= _FEW_ROWS
    if few or has_kernel_for(one.problem, "few rows"):
        return list(range(images))
    return [0] if images == 1 else [0, images - 1]  # one image twice takes twice the memory


def reference(
    one: ConvolutionStep, x: Tensor, residual: Tensor | None
) -> tuple[float, Tensor, float]:
    """Return (the rms error that is allowed, PyTorch's result, what the error is relative to).

    Both sizes are those of the numbers, if there is NaN or infinity as well.

    Promises are relative to the rms of the sums. If terms cancel beyond chance, they are relative
    to the rms of sums of such terms with random signs. If the algorithm rounds operands to
    bfloat16, PyTorch multiplies operands that are rounded alike: the error of rounding is promised
    for random operands only, and may be up to 2^-8 of the sum of the magnitudes of the terms
    (twice that, plus 2^-16, if both operands are rounded). For layers of bfloat16 the sums are
    compared as well, and the result may be rounded once.
    """
    layer, row = one.layer, algorithm_of(one)
    weight, bias = layer.weights.folded(), layer.weights.float_bias
    halves = weight.dtype is torch.bfloat16
    rounds = "both" if halves else "nothing" if row is None else row.rounds
    sums = summation_bound(one.problem.terms, "float32").rms
    error = error_of(one) if rounds == "nothing" else 2 * sums
    x = _rounded(x) if rounds == "both" else x
    plain = layer.product(x, weight) if rounds == "nothing" else _rounded_product(layer, x, weight)
    scale = max(rms(finite(plain)), sqrt(mean_of_squares(layer, x, weight)))
    if bias is not None:
        plain += bias if layer.linear else bias[:, None, None]
    if residual is not None:
        plain += residual
    allowed = STEEPEST * (error * scale + 2 * _EPS * rms(finite(plain)))
    right = layer.activate(plain)
    return allowed, F.max_pool2d(right, 2) if layer.pooled else right, scale


def _rounded(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def _rounded_product(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    """Return the product with weights rounded to bfloat16, some filters at a time."""
    if layer.groups > 1:
        return layer.product(x, _rounded(weight))
    return torch.cat([layer.product(x, _rounded(one)) for one in _split(weight)], dim=1)


def _split(weight: Tensor) -> tuple[Tensor, ...]:
    """Return a weight in parts of some filters."""
    return torch.split(weight, max(1, _SQUARED_FLOATS // weight[0].numel()))


def mean_of_squares(layer: Layer, x: Tensor, weight: Tensor) -> float:
    """Return the mean of the sums of squared terms; NaN and infinities in x count as 0."""
    size = peak(x)
    if not isfinite(size):
        x = torch.nan_to_num(x, 0.0, 0.0, 0.0)
        size = peak(x)
    mean = _summed_squares(layer, x, weight)
    if _SMALL < mean < _LARGE:
        return mean
    largest = peak(weight)
    if not 0 < size * largest < inf:
        return 0.0
    return _summed_squares(layer, x / size, weight, largest) * size * size * largest * largest


def _summed_squares(layer: Layer, x: Tensor, weight: Tensor, unit: float = 1.0) -> float:
    """Return the mean of the sums of squares of x times the weights, which are divided by a unit.

    It is computed some filters at a time: the squares of the 411 MB of VGG16's first linear layer
    would be as many bytes again, and the peak of memory.
    """
    squares = x.square()

    def product(part: Tensor) -> Tensor:
        part = part.to(x.dtype)
        return layer.product(squares, (part if unit == 1 else part / unit).square())

    if layer.groups > 1:
        return float(product(weight).mean(dtype=torch.float64))
    parts = ((product(part), len(part)) for part in _split(weight))
    return sum(float(sums.mean(dtype=torch.float64)) * count for sums, count in parts) / len(weight)
