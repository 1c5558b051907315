"""The lowered matrix: each row holds the input elements of one output pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.ops.convolution.estimate import operand_bytes, weight_bytes
from bestof.torch.ops.convolution.pads import pad, symmetric
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.dtypes import width_of

_LEAST, _MOST = 1 << 26, 1 << 30
_SHARE = 4  # times the operands and the result of a convolution


def scratch_limit(problem: ConvProblem) -> float:
    """Return the most bytes of a lowered matrix or of FFT spectra that a trial may take.

    They are bounded by what the program has anyway. The matrix for 3x3 has nine times the bytes of
    the image, which is more for large images; spectra have 3.5 times those of operands and result.
    No alternative that won one of the 93 passes in `benchmarks/cost_model` takes more.
    """
    return min(_MOST, max(_LEAST, _SHARE * (operand_bytes(problem) + weight_bytes(problem))))


def matrix_bytes(problem: ConvProblem) -> int:
    """Return the bytes of the lowered matrix of a problem."""
    _, c, r, s = problem.weight_shape
    p, q = problem.output_size
    width = width_of(problem.dtype)
    return problem.input_shape[0] * p * q * c * problem.groups * r * s * width


def lower(input: Tensor, problem: ConvProblem) -> Tensor:
    """Return the matrix (g, N P Q, R S C/g).

    It is a view of the input if no element moves (1x1 in channels last).
    """
    if problem.weight_shape[2:] != (1, 1):
        # Gathering runs of channels from a copy is faster than gathering single elements.
        input = input.contiguous(memory_format=torch.channels_last)
    image = pad(input, symmetric(problem.padding))
    n, c = problem.input_shape[:2]
    g, (_, _, r, s), (p, q) = problem.groups, problem.weight_shape, problem.output_size
    sn, sc, sh, sw = image.stride()
    windows = image.as_strided(
        (g, n, p, q, r, s, c // g),
        (
            c // g * sc,
            sn,
            sh * problem.stride[0],
            sw * problem.stride[1],
            sh * problem.dilation[0],
            sw * problem.dilation[1],
            sc,
        ),
    )
    return windows.reshape(g, n * p * q, r * s * (c // g))


def gradient_rows(grad_output: Tensor, problem: ConvProblem) -> Tensor:
    """Return the gradient of the output (N, K, P, Q) as (g, N P Q, K/g)."""
    g, k = problem.groups, problem.weight_shape[0]
    return grad_output.permute(0, 2, 3, 1).reshape(-1, g, k // g).transpose(0, 1)
