"""What a fused layer should compute, by PyTorch, and how far its algorithm may be from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite, prod, sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bestof.torch.ops.bound import summation_bound
from bestof.torch.ops.distance import PIECE, Size, peak, pieces, size_of
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.plan.algorithms.native import has_kernel_for
from bestof.torch.plan.algorithms.table import PYTORCH, algorithm, promised_error, table
from bestof.torch.plan.layers.activations import STEEPEST
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem

_EPS = float(torch.finfo(torch.float32).eps)
_SQUARED_FLOATS = 2**22
_FILTERS = 16  # which PyTorch's kernel computes at least, if results are computed in parts
_FEW_ROWS = 16  # a tile of a product at the most: its code differs with the number of rows
# Means of squares between these come from squares that float32 holds.
_SMALL, _LARGE = 1e-25, 1e30


def error_of(problem: FusedProblem, name: str | None) -> float:
    """Return the promised rms error of an algorithm, that of PyTorch's result included.

    It is relative to the rms of the sums. name: None for the largest promise.
    """
    theirs = PYTORCH.error(problem)
    return theirs + max(theirs, promised_error(problem, name))


def compared_images(problem: FusedProblem, images: int) -> list[int]:
    """Return the images, or rows, that are compared.

    All images are computed alike, so two of them show the algorithm's error. A few rows of a linear
    layer are each summed by code of their own, and any of them may be wrong.
    """
    few = is_rounded(problem.convolution.dtype) and images <= _FEW_ROWS
    if few or has_kernel_for(problem, "few rows"):
        return list(range(images))
    return [0] if images == 1 else [0, images - 1]  # one image twice takes twice the memory


class Part(NamedTuple):
    """What some filters of a layer should compute.

    filters: which. product: the size of the numbers among their sums. plain: the same with bias and
    residual. right: the results by PyTorch.
    """

    filters: slice
    product: Size
    plain: Size
    right: Tensor


class Promise(NamedTuple):
    """What the algorithm of a layer promises.

    rounds: which operands it rounds to bfloat16. error: rms, relative to the rms of the sums.
    """

    rounds: str
    error: float


def promise_of(problem: FusedProblem, name: str | None) -> Promise:
    """Return what an algorithm promises; None stands for one that is not known."""
    if is_rounded(problem.convolution.dtype):
        return Promise("both", _error_of_sums(problem, name))
    rounds = "nothing" if name is None else algorithm(name).rounds
    sums = summation_bound(problem.terms, "float32").rms
    return Promise(rounds, error_of(problem, name) if rounds == "nothing" else 2 * sums)


def _error_of_sums(problem: FusedProblem, name: str | None) -> float:
    """Return the promised rms error of the sums of a layer of bfloat16, before they are rounded.

    Winograd transforms float32, so its sums err as those of a layer of float32.
    """
    wide = problem._replace(convolution=problem.convolution._replace(dtype="float32"))
    rows = table().values() if name is None else (algorithm(name),)
    transforming = (row for row in rows if row.reach != "own" and row.can_run(problem))
    plain = 2 * summation_bound(problem.terms, "float32").rms
    return max((error_of(wide, row.name) for row in transforming), default=plain)


def reference(layer: Layer, promise: Promise, x: Tensor, residual: Tensor | None) -> Iterator[Part]:
    """Yield PyTorch's results of a layer, those of some filters at a time.

    The results of all filters would be one more value of the size of the largest in the program.
    If the algorithm rounds operands to bfloat16, PyTorch multiplies operands that are rounded
    alike: the error of rounding is promised for random operands only, and may be up to 2^-8 of the
    sum of the magnitudes of the terms (twice that, plus 2^-16, if both operands are rounded). For
    layers of bfloat16 the sums are compared as well, and the result may be rounded once.
    """
    weight, bias = layer.weights.folded(), layer.weights.float_bias
    x = rounded(x) if promise.rounds == "both" else x
    for filters in _parts(layer, x, weight):
        some, own = _some_filters(layer, filters, len(weight))
        given = x if layer.groups == 1 else x[:, own]
        plain = (
            some.product(given, weight[filters])
            if promise.rounds == "nothing"
            else _rounded_product(some, given, weight[filters])
        )
        product = size_of(plain)
        if bias is not None:
            plain += bias[filters] if layer.linear else bias[filters, None, None]
        if residual is not None:
            plain += residual[:, filters]
        with_all = size_of(plain)
        right = layer.activate(plain)
        yield Part(filters, product, with_all, F.max_pool2d(right, 2) if layer.pooled else right)


def scale_of(layer: Layer, promise: Promise, x: Tensor, product: Size) -> float:
    """Return what promises are relative to: the rms of the sums.

    If terms cancel beyond chance, it is the rms of sums of such terms with random signs. product:
    the size of the sums.
    """
    x = rounded(x) if promise.rounds == "both" else x
    return max(product.rms, sqrt(mean_of_squares(layer, x, layer.weights.folded())))


def allowed_error(promise: Promise, scale: float, plain: Size) -> float:
    """Return the rms error that is allowed.

    scale: what promises are relative to. plain: the size of the sums with bias and residual.
    """
    return STEEPEST * (promise.error * scale + 2 * _EPS * plain.rms)


def _parts(layer: Layer, x: Tensor, weight: Tensor) -> Iterator[slice]:
    """Yield the filters that are computed at a time: whole groups, if there are groups."""
    each = len(weight) // layer.groups if layer.groups > 1 else 1
    results = len(x) if layer.linear else len(x) * prod(layer.extents(*x.shape[2:]))
    wanted = max(_FILTERS, PIECE // max(1, results))
    count = max(_FILTERS, wanted // _FILTERS * _FILTERS)
    count = -(-count // each) * each
    for first in range(0, len(weight), count):
        yield slice(first, min(first + count, len(weight)))


def _some_filters(layer: Layer, filters: slice, count: int) -> tuple[Layer, slice]:
    """Return the layer of some of `count` filters, and the channels that it reads."""
    if layer.groups == 1:
        return layer, slice(None)
    each, channels = count // layer.groups, layer.weights.weight.shape[1]
    first, last = filters.start // each, filters.stop // each
    return replace(layer, groups=last - first), slice(first * channels, last * channels)


def rounded(values: Tensor) -> Tensor:
    """Return float32 values rounded to bfloat16, as float32."""
    return values.bfloat16().float()


def _rounded_product(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    """Return the product with weights rounded to bfloat16, some filters at a time."""
    if layer.groups > 1:
        return layer.product(x, rounded(weight))
    return torch.cat([layer.product(x, rounded(one)) for one in _split(weight)], dim=1)


def _split(weight: Tensor) -> tuple[Tensor, ...]:
    """Return a weight in parts of some filters."""
    return torch.split(weight, max(1, _SQUARED_FLOATS // weight[0].numel()))


def mean_of_squares(layer: Layer, x: Tensor, weight: Tensor) -> float:
    """Return the mean of the sums of squared terms; NaN and infinities in x count as 0."""
    size = peak(x)
    clean = isfinite(size)
    if not clean:
        size = max(peak(torch.nan_to_num(part, 0.0, 0.0, 0.0)) for (part,) in pieces(x))
    mean = _summed_squares(layer, x, weight, clean)
    if _SMALL < mean < _LARGE:
        return mean
    largest = peak(weight)
    if not 0 < size * largest < inf:
        return 0.0
    return _summed_squares(layer, x, weight, clean, size, largest) * size * size * largest * largest


def _summed_squares(
    layer: Layer,
    x: Tensor,
    weight: Tensor,
    clean: bool,
    size: float = 1.0,
    unit: float = 1.0,
) -> float:
    """Return the mean of the sums of squares of x, divided by `size`, times those of the weights.

    The weights are divided by `unit`. A tap meets each pixel of a window of its channel once. So
    the squares of all filters of a group are added first, and multiplied by the sum of the squares
    of the window. Some channels are squared at a time: the squares of the whole image would be as
    many bytes again, and the peak of memory.
    """
    taps = _squared_taps(layer, weight, x.dtype, unit).double()
    outputs = len(x) * len(weight) * (1 if layer.linear else prod(layer.extents(*x.shape[2:])))
    total = 0.0
    step = max(1, PIECE // max(1, x[:, :1].numel()))
    for first in range(0, len(taps), step):
        part = x[:, first : first + step]
        part = part if clean else torch.nan_to_num(part, 0.0, 0.0, 0.0)
        squares = (part if size == 1 else part / size).square()
        windows = squares.sum(0).double() if layer.linear else _windows(layer, squares, weight)
        total += float((windows * taps[first : first + step]).sum())
    return total / outputs if outputs else 0.0


def _windows(layer: Layer, squares: Tensor, weight: Tensor) -> Tensor:
    """Return the sums over the pixels that each tap meets: (channels, height, width)."""
    (high, wide), (rows, columns) = weight.shape[2:], layer.extents(*squares.shape[2:])
    found = torch.zeros(squares.shape[1], high, wide, dtype=torch.float64)
    for y in range(high):
        met = _met(0, y, rows, squares.shape[2], layer)
        band = squares[:, :, met].sum((0, 2)).double()
        for x in range(wide):
            found[:, y, x] = band[:, _met(1, x, columns, squares.shape[3], layer)].sum(1)
    return found


def _met(axis: int, tap: int, outputs: int, extent: int, layer: Layer) -> slice:
    """Return the places along an axis of the image that a tap meets for some result."""
    stride = layer.stride[axis]
    first = tap * layer.dilation[axis] - layer.padding[axis]
    last = first + (outputs - 1) * stride
    if first < 0:
        first += -(first // stride) * stride
    return slice(first, max(first, min(last + 1, extent)), stride)


def _squared_taps(layer: Layer, weight: Tensor, dtype: torch.dtype, unit: float) -> Tensor:
    """Return the squares of the weights (channels, ...), added up over the filters of each group.

    They are taken some filters at a time: the squares of the 411 MB of VGG16's first linear layer
    would be as many bytes again.
    """

    def squared(part: Tensor) -> Tensor:
        part = part.to(dtype)
        return (part if unit == 1 else part / unit).square()

    if layer.groups == 1:
        taps = torch.zeros_like(weight[0], dtype=dtype)
        for part in _split(weight):
            taps += squared(part).sum(0)
        return taps
    each = len(weight) // layer.groups
    return squared(weight).reshape(layer.groups, each, *weight.shape[1:]).sum(1).flatten(0, 1)
