"""PyTorch's own kernels on channels-last copies: conversions there and back included."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.convolution import as_is
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem


def supports(problem: ConvProblem) -> bool:
    """Where PyTorch would not compute in channels last anyway, and the two formats differ."""
    return not problem.empty and not problem.channels_last and problem.input_shape[1] > 1


def _converted(problem: ConvProblem) -> ConvProblem:
    return problem._replace(input_layout="channels_last", weight_layout="channels_last")


def forward(
    originals: Originals, input: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem
) -> Tensor:
    """The output (N, K, P, Q)."""
    converted = input.contiguous(memory_format=torch.channels_last)
    return in_format(
        as_is.forward(originals, converted, weight, bias, problem), problem.channels_last
    )


def input_gradient(
    originals: Originals, grad_output: Tensor, weight: Tensor, problem: ConvProblem
) -> Tensor:
    """The gradient of the input (N, C, H, W)."""
    converted = grad_output.contiguous(memory_format=torch.channels_last)
    gradient = as_is.input_gradient(originals, converted, weight, _converted(problem))
    return in_format(gradient, problem.channels_last)


def weight_gradient(
    originals: Originals, grad_output: Tensor, input: Tensor, problem: ConvProblem
) -> Tensor:
    """The gradient of the weight (K, C/g, R, S)."""
    gradient = as_is.weight_gradient(
        originals,
        grad_output.contiguous(memory_format=torch.channels_last),
        input.contiguous(memory_format=torch.channels_last),
        _converted(problem),
    )
    return in_format(gradient, problem.channels_last)
