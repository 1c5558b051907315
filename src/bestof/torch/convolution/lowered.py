"""The lowered matrix: one row an output pixel, holding the input elements that this pixel is computed from."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.convolution.pads import pad, symmetric
from bestof.torch.convolution.problem import ConvProblem

MATRIX_LIMIT = 1 << 30
"""Bytes that a lowered matrix or the spectra of an FFT may take: a trial must not push a program out of memory."""


def matrix_bytes(problem: ConvProblem) -> int:
    """The size of the lowered matrix of a float32 or float64 problem."""
    _, c, r, s = problem.weight_shape
    p, q = problem.output_size
    width = 8 if problem.dtype == "float64" else 4
    return problem.input_shape[0] * p * q * c * problem.groups * r * s * width


def lower(input: Tensor, problem: ConvProblem) -> Tensor:
    """The matrix (g, N P Q, R S C/g); a view of the input where no element has to move (1x1 in channels last)."""
    if problem.weight_shape[2:] != (1, 1):
        # Gathering runs of channels from a converted copy beats gathering single elements from channels first.
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
    """The gradient of the output (N, K, P, Q) as (g, N P Q, K/g)."""
    g, k = problem.groups, problem.weight_shape[0]
    return grad_output.permute(0, 2, 3, 1).reshape(-1, g, k // g).transpose(0, 1)
