"""Compare what a block has computed with PyTorch's results."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.distance import distance, peak, size_of
from bestof.torch.plan.layers.activations import activation_of
from bestof.torch.plan.layers.block import Block, BlockProblem
from bestof.torch.plan.steps.comparison import Comparison, stands_out
from bestof.torch.plan.steps.layer_reference import error_of, rounded

_EPS = float(torch.finfo(torch.float32).eps)
_HIDDEN = 1e-3
_TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers have fewer digits, or none


class Expected(NamedTuple):
    """What a block should make of its operands, by PyTorch.

    right: the results. variance: of their errors, an element each. sums: the rms of the sums of the
    last layer. plain: the same with bias and residual.
    """

    right: Tensor
    variance: Tensor
    sums: float
    plain: float


def compare_block(
    block: Block,
    problem: BlockProblem,
    x: Tensor,
    residual: Tensor | None,
    out: Tensor,
    rounds: bool = False,
) -> Comparison:
    """Return how the results of a block compare with PyTorch's, in the first and last image.

    rounds: whether the 1x1 convolutions multiply operands rounded to bfloat16.
    """
    operands = [x] if residual is None else [x, residual]
    is_finite = all(isfinite(peak(given)) for given in operands)
    some = {0, len(x) - 1} if is_finite else set(range(len(x)))  # NaN may reach any image
    images = sorted(some)
    given = x[images]
    part = None if residual is None else residual[images]
    errors = [error_of(one, None) for one in problem.layers]
    found = expect_block(block, errors, given, part, rounds)
    right = found.right
    same, off = distance(out[images], right)
    numbers = size_of(right)
    allowed = size_of(found.variance.sqrt()).rms + 2 * _EPS * found.plain
    if problem.holds_bfloat16:
        allowed += float(torch.finfo(torch.bfloat16).eps) / 2 * numbers.rms  # of one result
    return Comparison(
        same,
        off.rms,
        allowed + _TINY,
        off.peak,
        max(stands_out(numbers), stands_out(size_of(given))),
        shows=found.sums > _HIDDEN * numbers.rms > 0 and numbers.many == right.numel(),
        finite=is_finite,
        terms=sum(one.terms for one in problem.layers),
        scale=found.sums,
    )


def expect_block(
    block: Block,
    errors: Sequence[float],
    x: Tensor,
    residual: Tensor | None,
    rounds: bool = False,
) -> Expected:
    """Compute a block by PyTorch, and how large its errors may be.

    errors: the promised rms error of each layer, relative to the rms of the sums if their terms
    had random signs. rounds: whether 1x1 convolutions multiply operands rounded to bfloat16.

    The errors of a layer are independent of those of its operands: the variance of a sum is that of
    the terms, each times a squared weight, and the layer's own. The own one is the squared promise
    times the sum of squared terms. An activation multiplies errors by its steepest slope at most.
    """
    x = x.float()
    variance = torch.zeros_like(x)
    sums = plain = 0.0
    for layer, error in zip(block.layers, errors, strict=True):
        is_last = layer is block.layers[-1]
        weight = layer.weights.folded().float()
        if rounds and layer is not block.depthwise:
            x, weight = rounded(x), rounded(weight)
        squares = layer.product(x.square(), weight.square())
        variance = layer.product(variance, weight.square()).add_(squares, alpha=error * error)
        product = layer.product(x, weight)
        sums = max(size_of(product).rms, size_of(squares.sqrt_()).rms)
        if layer.weights.float_bias is not None:
            product += layer.weights.float_bias[:, None, None]
        if is_last and residual is not None:
            product += residual
        plain = size_of(product).rms
        variance *= activation_of(layer.activation).steepest ** 2
        x = layer.activate(product)
    return Expected(x, variance, sums, plain)
