"""The gradient of a frozen batch norm with respect to its input: s times that of its result.

It is 0 where a ReLU returned 0. It reads the result of the ReLU, and not the input of the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof import kernels
from bestof.accuracy import Accuracy
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32
from bestof.torch.ops.norm.frozen_norm_problem import (
    FrozenNormPass,
    FrozenNormProblem,
    are_statistics,
    examples,
    in_format_of,
    is_channels_last,
    rows_of,
    scale_of,
    slope_of,
)
from bestof.torch.ops.operation import Call
from bestof.torch.ops.rounding_operation import Part, units
from bestof.torch.ops.row import Row

_ROUNDINGS = 5.0  # of a slope and a product, by PyTorch in float32


def gradient(
    upstream: Tensor, y: Tensor | None, variance: Tensor, weight: Tensor | None, eps: float
) -> Tensor:
    """Return the gradient by PyTorch's operators."""
    slope = slope_of(variance, weight, eps)
    masked = upstream if y is None else torch.ops.aten.threshold_backward(upstream, y, 0)
    found: Tensor = (masked * slope.view(-1, *[1] * (upstream.dim() - 2))).to(upstream.dtype)
    return found


def as_is(
    _original: None,
    problem: FrozenNormProblem,
    upstream: Tensor,
    y: Tensor | None,
    variance: Tensor,
    weight: Tensor | None,
) -> Tensor:
    """Return the gradient by PyTorch's operators."""
    return gradient(upstream, y, variance, weight, problem.eps)


def native(
    _original: None,
    problem: FrozenNormProblem,
    upstream: Tensor,
    y: Tensor | None,
    variance: Tensor,
    weight: Tensor | None,
) -> Tensor:
    """Return the gradient by a native kernel."""
    found = torch.empty_like(upstream)
    kernels.frozen_norm_backward(
        rows_of(upstream, problem),
        None if y is None else rows_of(y, problem),
        variance.detach(),
        None if weight is None else weight.detach(),
        eps=problem.eps,
        channels_last=problem.channels_last,
        out=rows_of(found, problem),
        threads=problem.threads,
    )
    return found


class FrozenNormBackward(FrozenNormPass):
    """The backward pass. The operands: the gradient of y, y if a ReLU follows, variance, weight."""

    name = "frozen norm backward"
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32, BFLOAT16), accuracy="float32"),
    )

    def call(
        self,
        _level: Accuracy,
        upstream: Tensor,
        y: Tensor | None,
        variance: Tensor,
        weight: Tensor | None,
        eps: float,
    ) -> Call | None:
        """Return the problem and the operands; None if PyTorch answers them.

        The gradient is brought into the format of y.
        """
        if upstream.dtype not in self.dtypes or not are_statistics(variance, weight):
            return None
        if y is not None and (y.dtype is not upstream.dtype or is_channels_last(y) is None):
            return None
        upstream = in_format_of(upstream, y)
        problem = FrozenNormProblem.of("backward", upstream, y is not None, eps)
        return None if problem is None else Call(problem, (upstream, y, variance, weight))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of norms with a ReLU."""
        one = torch.ones(64)
        return {name: (x, x.flip(0).relu(), 2.0 * one, one, 1e-5) for name, x in examples().items()}

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the bound of one product."""
        upstream, _, variance, weight = call.operands
        slope, bound = slope_of(variance, weight, call.problem.eps), units(_ROUNDINGS)
        return (Part(scale_of(upstream, slope), bound, bound),)
