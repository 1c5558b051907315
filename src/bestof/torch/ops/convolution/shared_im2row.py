"""im2row whose forward pass returns the lowered matrix, for use in the backward pass."""

from __future__ import annotations

from torch import Tensor

from bestof.torch.ops.convolution import im2row
from bestof.torch.ops.convolution.estimate import MATRIX
from bestof.torch.ops.convolution.lowered import lower, matrix_bytes
from bestof.torch.ops.convolution.problem import ConvProblem


def supports(problem: ConvProblem) -> bool:
    """Return whether im2row applies, except for 1x1: its matrix is the input, so nothing is
    saved."""
    return im2row.FORWARD.can_run(problem) and problem.weight_shape[2:] != (1, 1)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate of the forward pass and the weight gradient, the matrix built once."""
    return 2 * im2row.estimate(problem) - MATRIX * matrix_bytes(problem)


def forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem
) -> tuple[Tensor, Tensor]:
    """Return the output (N, K, P, Q), and the lowered matrix (g, N P Q, R S C/g).

    The matrix is a copy, so later changes of the input do not affect it.
    """
    lowered = lower(input, problem)
    if lowered.untyped_storage().data_ptr() == input.untyped_storage().data_ptr():
        lowered = lowered.clone()
    return im2row.product(lowered, weight, bias, problem), lowered


def weight_gradient(lowered: Tensor, grad_output: Tensor, problem: ConvProblem) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S) from the matrix that `forward` returned."""
    return im2row.weight_product(lowered, grad_output, problem)
