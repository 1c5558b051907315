"""Compare what a fused layer has computed with PyTorch's results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from bestof.torch.ops.distance import Distance, Size, distance, peak, size_of
from bestof.torch.ops.rounding_operation import UNIT
from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.steps.comparison import Comparison, stands_out
from bestof.torch.plan.steps.layer_reference import (
    allowed_error,
    compared_images,
    promise_of,
    reference,
    scale_of,
)

_HIDDEN = 1e-3
_TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers have fewer digits, or none


def compare_layer(placed: PlacedLayer, name: str | None, residual: Tensor | None) -> Comparison:
    """Return how the results of a layer compare with PyTorch's, some filters at a time.

    name: the algorithm; None if it is not known. residual: as it was before the run.
    """
    x = placed.x if isinstance(placed.x, Tensor) else placed.x()
    operands = [given for given in (x, residual, placed.gate) if given is not None]
    is_finite = all(isfinite(peak(given)) for given in operands)
    # NaN is rare, and may reach any image.
    some = compared_images(placed.problem, x.shape[0]) if is_finite else list(range(x.shape[0]))
    compared = partial(_images, some=some)
    rounding = torch.finfo(placed.layer.weights.weight.dtype).eps / 2  # of one result
    gate = None if placed.gate is None else compared(placed.gate).float()
    promise = promise_of(placed.problem, name)
    out, x = compared(placed.out), compared(x)
    part = None if residual is None else compared(residual)
    product, plain, seen, numbers, found = Size(), Size(), Size(), Size(), Distance()
    elements = 0
    for filters, sums, with_all, right in reference(placed.layer, promise, x, part):
        product, plain = product.joined(sums), plain.joined(with_all)
        seen = seen.joined(size_of(right))
        gated = right if gate is None else right * gate[:, filters]
        numbers = numbers.joined(size_of(gated))
        elements += gated.numel()
        found = found.joined(distance(out[:, filters], gated))
    scale = scale_of(placed.layer, promise, x, product)
    allowed = allowed_error(promise, scale, plain)
    is_seen = scale > _HIDDEN * seen.rms  # else bias or residual hide the products
    if gate is not None:  # errors may be largest where the gate is
        beside = size_of(gate)
        allowed, scale = allowed * beside.peak, scale * beside.rms
    if rounding > UNIT:
        allowed += rounding * numbers.rms
    allowed += _TINY
    same, off = found
    return Comparison(
        same,
        off.rms,
        allowed,
        off.peak,
        max(stands_out(numbers), stands_out(size_of(x))),
        shows=is_seen and numbers.rms > 0 and numbers.many == elements,
        finite=is_finite,
        terms=placed.problem.terms,
        scale=scale,
    )


def _images(values: Tensor, some: Sequence[int]) -> Tensor:
    """Return some images of a value: a view if they are all."""
    return values if len(some) == values.shape[0] else values[list(some)]
