"""The gradients of layer norm: chooses between PyTorch's own kernel and a native one.

PyTorch reads its operands once for the gradient of the input, and once more for those of the weight
and the bias. On a Zen 3 the native kernel takes 0.75 to 0.95 of PyTorch's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.backends.shim import Native
from bestof.torch.ops.comparison import energies
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.native_operands import address, are_like, compiled_by
from bestof.torch.ops.norm.gradient_parts import gradient_parts
from bestof.torch.ops.norm.layer_norm import LayerNorm
from bestof.torch.ops.norm.layer_norm_problem import LEAST, LayerNormProblem, is_plain_norm
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation
from bestof.torch.ops.row import Row

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def as_is(
    original: Kernel,
    problem: LayerNormProblem,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Gradients:
    """Return the gradients by PyTorch's own kernel."""
    return original(  # type: ignore[no-any-return]
        gradient, x, problem.normalized, mean, rstd, weight, bias, problem.mask
    )


def native(
    _original: Kernel,
    problem: LayerNormProblem,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    _bias: Tensor | None,
) -> Gradients:
    """Return the gradients by a native kernel, which reads the rows once."""
    shapes = problem.shape, problem.normalized, problem.normalized
    of_x, of_weight, of_bias = (
        torch.empty(shape, dtype=x.dtype, device="cpu") if wanted else None
        for shape, wanted in zip(shapes, problem.mask, strict=True)
    )
    problem.plan().run_backward(
        address(gradient),
        address(x),
        address(mean),
        address(rstd),
        address(weight),
        address(of_x),
        address(of_weight),
        address(of_bias),
    )
    return of_x, of_weight, of_bias


def compiled(
    problem: LayerNormProblem, _gradient: Tensor, x: Tensor, *_others: Tensor | None
) -> Native | None:
    """Return the kernel of `native` for settled calls, which makes all gradients."""
    if not all(problem.mask):
        return None
    runnable = problem.plan().runnable(backward=True)
    shapes = problem.shape, problem.normalized, problem.normalized
    return compiled_by(runnable, 6, *shapes, like=x)


class LayerNormBackward(RoundingOperation[LayerNormProblem]):
    """`aten::native_layer_norm_backward`."""

    name = "layer norm backward"
    operator = "aten::native_layer_norm_backward"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32,), accuracy="float32", compiled=compiled),
    )

    def call(
        self,
        level: Accuracy,
        gradient: Tensor,
        x: Tensor,
        normalized_shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        output_mask: Sequence[bool],
    ) -> Call | None:
        """Return the problem and the tensors of a call; None if PyTorch answers it."""
        if not is_plain_norm(level, self.dtypes, x, normalized_shape, weight, bias):
            return None
        mask = tuple(output_mask)
        if not any(mask) or (mask[1] and weight is None) or (mask[2] and bias is None):
            return None
        if not are_like(x, gradient, mean, rstd) or gradient.shape != x.shape:
            return None
        problem = LayerNormProblem(
            tuple(x.shape),
            tuple(normalized_shape),
            0.0,
            weight is not None,
            bias is not None,
            mask,
            torch.get_num_threads(),
            level,
        )
        if mean.numel() != problem.rows or rstd.numel() != problem.rows:
            return None
        if not (gradient.is_contiguous() and mean.is_contiguous() and rstd.is_contiguous()):
            return None
        return Call(problem, (gradient, x, mean, rstd, weight, bias))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the gradients of the examples of the forward pass."""
        found = {}
        for name, (x, shape, weight, bias, eps) in LayerNorm().examples().items():
            _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
            gradient = random(*x.shape, seed=1)
            found[name] = (gradient, x, shape, mean, rstd, weight, bias, (True, True, True))
        return found

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the scales: three terms for the input, sums over the rows for the others.

        The numbers of a row less their mean are differences. Their errors are relative to the mean.
        """
        gradient, _, mean, rstd, weight, _ = call.operands
        assert gradient is not None
        assert mean is not None
        assert rstd is not None
        problem: LayerNormProblem = call.problem
        sums = energies(gradient.reshape(problem.rows, problem.size), (0,))
        return gradient_parts(gradient, mean * rstd, rstd, weight, sums, problem.size, problem.rows)
