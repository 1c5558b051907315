"""PyTorch's unfold and fold with one matrix product an image: the transposed im2row.

Its natural layout is channels first.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import fold, unfold

from bestof.torch.ops.convolution import im2row
from bestof.torch.ops.convolution.direction import EVERYWHERE, Passes
from bestof.torch.ops.convolution.estimate import (
    AGAIN,
    CONVERSION,
    dense,
    operand_bytes,
    touched,
    weight_bytes,
)
from bestof.torch.ops.convolution.lowered import matrix_bytes
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import WIDE
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.row import Row


def supports(problem: ConvProblem) -> bool:
    """Return whether im2row applies: the matrix has the same size."""
    return im2row.supports(problem)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate: as im2row, with single elements gathered at 0.8 GB/s.

    Each image takes a product of its own, which reads all weights. On 64 images of 512x2x2 that
    makes 17 to 34 times the best.
    """
    again = AGAIN * problem.input_shape[0] * weight_bytes(problem)
    conversion = CONVERSION * operand_bytes(problem) if problem.channels_last else 0.0
    gathered = 170.0 * matrix_bytes(problem)
    return dense(problem) + gathered + again + conversion + touched(problem)


def _columns(input: Tensor, problem: ConvProblem) -> Tensor:
    """Return the lowered matrices (N, C R S, P Q)."""
    return unfold(
        input, problem.weight_shape[2:], problem.dilation, problem.padding, problem.stride
    )


def _matrices(weight: Tensor, problem: ConvProblem) -> Tensor:
    """Return the weights (N g, K/g, C/g R S); with one group a stride of 0 serves all images."""
    n, g, (k, c, r, s) = problem.input_shape[0], problem.groups, problem.weight_shape
    return (
        weight.reshape(1, g, k // g, c * r * s)
        .expand(n, -1, -1, -1)
        .reshape(n * g, k // g, c * r * s)
    )


def forward(
    _originals: PyTorchConv,
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    n, k, p, q = problem.output_shape
    g, (_, c, r, s) = problem.groups, problem.weight_shape
    columns = _columns(input, problem).reshape(n * g, c * r * s, p * q)
    output = torch.bmm(_matrices(weight, problem), columns).reshape(n, k, p, q)
    if bias is not None:
        output += bias.reshape(k, 1, 1)
    return in_format(output, problem.channels_last)


def input_gradient(
    _originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    n, k, p, q = problem.output_shape
    g, (_, c, r, s) = problem.groups, problem.weight_shape
    gradient = grad_output.reshape(n * g, k // g, p * q)
    columns = torch.bmm(_matrices(weight, problem).transpose(1, 2), gradient).reshape(
        n, g * c * r * s, p * q
    )
    image = fold(
        columns, problem.input_shape[2:], (r, s), problem.dilation, problem.padding, problem.stride
    )
    return in_format(image, problem.channels_last)


def weight_gradient(
    _originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S), added up image by image.

    One product of all images would hold N gradients.
    """
    n, k, p, q = problem.output_shape
    g, (_, c, r, s) = problem.groups, problem.weight_shape
    columns = _columns(input, problem).reshape(n, g, c * r * s, p * q)
    gradients = grad_output.reshape(n, g, k // g, p * q)
    total = torch.bmm(gradients[0], columns[0].transpose(1, 2))
    for image in range(1, n):
        total.baddbmm_(gradients[image], columns[image].transpose(1, 2))
    return in_weight_format(total.reshape(k, c, r, s), problem)


_row = partial(
    Row,
    "im2col",
    supports=supports,
    dtypes=WIDE,
    estimate=estimate,
    accuracy="float32",
    scratch=matrix_bytes,
    devices=EVERYWHERE,
)
ROWS: Passes = _row(forward), _row(input_gradient), _row(weight_gradient)
