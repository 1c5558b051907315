"""im2row: the lowered matrix times the weights, one matrix product a group.

Chellapilla et al., High Performance Convolutional Neural Networks for Document Processing, 2006.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bestof.torch.ops.convolution.direction import Passes
from bestof.torch.ops.convolution.estimate import MATRIX, converted, dense, touched
from bestof.torch.ops.convolution.lowered import gradient_rows, lower, matrix_bytes, scratch_limit
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import HALVES, WIDE
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.onednn import sums_in_float32
from bestof.torch.ops.row import Row


def supports(problem: ConvProblem) -> bool:
    """Return whether the lowered matrix is within its limit."""
    return not problem.empty and matrix_bytes(problem) <= scratch_limit(problem)


def supports_weight_gradient(problem: ConvProblem) -> bool:
    """Return the same, and for half types whether PyTorch's product sums in float32.

    The other passes round half types more than once: they add a bias, or the taps of a gradient.
    """
    return supports(problem) and sums_in_float32(problem.dtype)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate: a matrix product at full rate, and a fresh matrix."""
    matrix = MATRIX * matrix_bytes(problem)
    return dense(problem) + matrix + touched(problem) + converted(problem)


def product(lowered: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem) -> Tensor:
    """Return the output (N, K, P, Q) from the lowered matrix."""
    g, (k, c, r, s) = problem.groups, problem.weight_shape
    n, _, p, q = problem.output_shape
    matrix = weight.reshape(g, k // g, c, r, s).permute(0, 3, 4, 2, 1).reshape(g, r * s * c, k // g)
    if g == 1:
        rows = (
            torch.mm(lowered[0], matrix[0])
            if bias is None
            else torch.addmm(bias, lowered[0], matrix[0])
        )
    elif bias is None:
        rows = torch.bmm(lowered, matrix).transpose(0, 1)
    else:
        rows = torch.baddbmm(bias.reshape(g, 1, k // g), lowered, matrix).transpose(0, 1)
    return in_format(rows.reshape(n, p, q, k).permute(0, 3, 1, 2), problem.channels_last)


def weight_product(lowered: Tensor, grad_output: Tensor, problem: ConvProblem) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S) from the lowered matrix."""
    k, c, r, s = problem.weight_shape
    rows = gradient_rows(grad_output, problem).transpose(1, 2)
    gradient = torch.bmm(rows, lowered) if len(rows) > 1 else torch.mm(rows[0], lowered[0])
    return in_weight_format(gradient.reshape(k, r, s, c).permute(0, 3, 1, 2), problem)


def forward(
    _originals: PyTorchConv,
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    return product(lower(input, problem), weight, bias, problem)


def input_gradient(
    _originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W).

    It is the gradient of the lowered matrix, added up tap by tap.
    """
    g, (k, c, r, s) = problem.groups, problem.weight_shape
    n, _, h, w = problem.input_shape
    p, q = problem.output_size
    (pad_h, pad_w), (stride_h, stride_w), (step_h, step_w) = (
        problem.padding,
        problem.stride,
        problem.dilation,
    )
    matrix = weight.reshape(g, k // g, c, r, s).permute(0, 1, 3, 4, 2).reshape(g, k // g, r * s * c)
    lowered = torch.bmm(gradient_rows(grad_output, problem), matrix).reshape(g, n, p, q, r, s, c)
    padded = lowered.new_zeros(n, h + 2 * pad_h, w + 2 * pad_w, g, c)
    for i in range(r):
        rows = slice(i * step_h, i * step_h + stride_h * (p - 1) + 1, stride_h)
        for j in range(s):
            columns = slice(j * step_w, j * step_w + stride_w * (q - 1) + 1, stride_w)
            padded[:, rows, columns] += lowered[:, :, :, :, i, j].permute(1, 2, 3, 0, 4)
    image = padded[:, pad_h : pad_h + h, pad_w : pad_w + w].reshape(n, h, w, g * c)
    return in_format(image.permute(0, 3, 1, 2), problem.channels_last)


def weight_gradient(
    _originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    return weight_product(lower(input, problem), grad_output, problem)


_row = partial(Row, "im2row", estimate=estimate, accuracy="float32", scratch=matrix_bytes)
ROWS: Passes = (
    _row(forward, supports, dtypes=WIDE),
    _row(input_gradient, supports, dtypes=WIDE),
    _row(weight_gradient, supports_weight_gradient, dtypes=(*WIDE, *HALVES)),
)
