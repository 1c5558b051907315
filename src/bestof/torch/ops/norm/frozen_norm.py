"""Batch norm with fixed statistics: chooses between PyTorch's operators and a native kernel.

With s = weight / sqrt(running_var + eps) and t = bias - running_mean s, the result is y = x s + t,
or its positive part. `bestof.torch.frozen_batch_norm` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bestof import kernels
from bestof.accuracy import Accuracy
from bestof.torch.ops.distance import peak
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32
from bestof.torch.ops.norm.frozen_norm_problem import (
    FrozenNormPass,
    FrozenNormProblem,
    are_statistics,
    examples,
    rows_of,
    scale_of,
    slope_of,
)
from bestof.torch.ops.operation import Call
from bestof.torch.ops.rounding_operation import Part, units
from bestof.torch.ops.row import Row

_ROUNDINGS = 8.0  # of a slope, a shift, a product and a sum, by PyTorch in float32


def as_is(
    _original: None,
    problem: FrozenNormProblem,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Return y by PyTorch's operators."""
    y = functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, problem.eps)
    return y.relu_() if problem.relu else y


def native(
    _original: None,
    problem: FrozenNormProblem,
    x: Tensor,
    *statistics: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """Return y by a native kernel, in the memory of `out` if it is given; that may be x."""
    y = torch.empty_like(x) if out is None else out
    kernels.frozen_norm(
        rows_of(x, problem),
        *(None if one is None else one.detach() for one in statistics),
        eps=problem.eps,
        relu=problem.relu,
        channels_last=problem.channels_last,
        out=rows_of(y, problem),
        threads=problem.threads,
    )
    return y


class FrozenNorm(FrozenNormPass):
    """The forward pass. The operands: x, then mean, variance, weight and bias of its channels."""

    name = "frozen norm"
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32, BFLOAT16), accuracy="float32"),
    )

    def call(
        self,
        _level: Accuracy,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        relu: bool,
    ) -> Call | None:
        """Return the problem and the operands; None if PyTorch answers them."""
        statistics = mean, variance, weight, bias
        if x.dtype not in self.dtypes or not are_statistics(*statistics):
            return None
        problem = FrozenNormProblem.of("forward", x, relu, eps)
        return None if problem is None else Call(problem, (x, *statistics))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return norms with a ReLU."""
        one = torch.ones(64)
        return {
            name: (x, 0.1 * one, 2.0 * one, one, 0.1 * one, 1e-5, True)
            for name, x in examples().items()
        }

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the bound: the terms of a result are a product and a shift."""
        x, mean, variance, weight, bias = call.operands
        slope = slope_of(variance, weight, call.problem.eps)
        shift = peak(mean * slope) + (0.0 if bias is None else peak(bias))
        bound = units(_ROUNDINGS)
        return (Part(scale_of(x, slope, shift), bound, bound),)
