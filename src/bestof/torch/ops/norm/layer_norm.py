"""Layer norm: chooses between PyTorch's own kernel and a native one.

On a Zen 3 the native kernel takes 0.75 to 0.9 of PyTorch's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.backends.shim import Native
from bestof.torch.ops.bound import ErrorBound, summation_bound
from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.distance import peak, rms, size_of
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.native_operands import address, compiled_by
from bestof.torch.ops.norm.layer_norm_problem import LEAST, LayerNormProblem, is_plain_norm
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation
from bestof.torch.ops.row import Row

Normed = tuple[Tensor, Tensor, Tensor]


def as_is(
    original: Kernel,
    problem: LayerNormProblem,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Normed:
    """Return the normed rows, means and reciprocal deviations by PyTorch's own kernel."""
    return original(x, problem.normalized, weight, bias, problem.eps)  # type: ignore[no-any-return]


def native(
    _original: Kernel,
    problem: LayerNormProblem,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Normed:
    """Return the normed rows, means and reciprocal deviations by a native kernel."""
    out = torch.empty(problem.shape, dtype=x.dtype, device="cpu")
    axes = len(problem.normalized)
    shape = (*problem.shape[: len(problem.shape) - axes], *(1,) * axes)
    mean, rstd = (torch.empty(shape, dtype=x.dtype, device="cpu") for _ in range(2))
    problem.plan().run(
        address(x), address(weight), address(bias), address(out), address(mean), address(rstd)
    )
    return out, mean, rstd


def compiled(problem: LayerNormProblem, x: Tensor, *_others: Tensor | None) -> Native:
    """Return the kernel of `native` for settled calls."""
    sums = problem.shape[: len(problem.shape) - len(problem.normalized)]
    sums = (*sums, *(1,) * len(problem.normalized))
    return compiled_by(problem.plan().runnable(), 3, problem.shape, sums, sums, like=x)


class LayerNorm(RoundingOperation[LayerNormProblem]):
    """`aten::native_layer_norm`."""

    name = "layer norm"
    operator = "aten::native_layer_norm"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32,), accuracy="float32", compiled=compiled),
    )

    def call(
        self,
        level: Accuracy,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Call | None:
        """Return the problem and the tensors of a call; None if PyTorch answers it."""
        if not is_plain_norm(level, self.dtypes, x, normalized_shape, weight, bias) or not eps >= 0:
            return None
        problem = LayerNormProblem(
            tuple(x.shape),
            tuple(normalized_shape),
            float(eps),
            weight is not None,
            bias is not None,
            (),
            torch.get_num_threads(),
            level,
        )
        return Call(problem, (x, weight, bias))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return that of BERT-base, and many short rows."""
        return {
            f"{rows} x {size}": (random(rows, size), (size,), random(size), random(size), 1e-5)
            for rows, size in ((1024, 768), (16384, 128))
        }

    def parts(self, call: Call, expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the scales: that of a row is its mean over its deviation, if this is above 1.

        A variance near 0 is a difference, and so are the numbers of a row less their mean.
        """
        x, weight, bias = call.operands
        _, mean, rstd = expected
        assert x is not None
        assert mean is not None
        assert rstd is not None
        numbers, factor, term = size_of(x), _size(weight, 1.0), _size(bias, 0.0)
        far = torch.nan_to_num(mean * rstd, 0.0, 0.0, 0.0)
        middle, farthest = 1.0 + rms(far), 1.0 + peak(far)
        steep = torch.nan_to_num(rstd, 0.0, 0.0, 0.0)
        bound = summation_bound(call.problem.size, "float32")
        return (
            _part(middle * factor.rms + term.rms, farthest * factor.peak + term.peak, bound),
            _part(numbers.rms, numbers.peak, bound),
            _part(rms(steep) * farthest, peak(steep) * farthest, bound),
        )


def _size(values: Tensor | None, rest: float) -> Scale:
    if values is None:
        return Scale(rest, rest)
    found = size_of(values)
    return Scale(found.rms, found.peak)


def _part(mean: float, largest: float, bound: ErrorBound) -> Part:
    return Part(Scale(mean, largest), bound, bound)
