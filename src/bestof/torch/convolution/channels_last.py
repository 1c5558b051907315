"""PyTorch's own kernels on channels-last copies. The time includes both conversions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.torch.convolution import as_is, onednn
from bestof.torch.convolution.estimate import in_channels_last, input_gradient_in_channels_last
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.row import Direction
from bestof.torch.convolution.weight_format import in_weight_format


def supports(direction: Direction) -> Callable[[ConvProblem], bool]:
    """Return the test for problems that differ in channels last, and that oneDNN computes there."""

    def answer(problem: ConvProblem) -> bool:
        return (
            not problem.empty
            and not problem.channels_last
            and problem.input_shape[1] > 1
            and not reads_strides(problem)
            and onednn.serves(_converted(problem), direction)
        )

    return answer


def reads_strides(problem: ConvProblem) -> bool:
    """Return whether a group's weights have strides that oneDNN 3.12 reads wrongly.

    PyTorch takes weights for channels last whose strides differ only along a dimension of size 1.
    oneDNN then takes those of one group for another's: PyTorch's own call on an image in channels
    last is wrong too.
    """
    return problem.groups > 1 and problem.weight_layout == "other"


def estimate(problem: ConvProblem) -> float:
    """Return the estimate of the forward pass and of the weight gradient."""
    return in_channels_last(problem)


def estimate_input_gradient(problem: ConvProblem) -> float:
    return input_gradient_in_channels_last(problem)


def _converted(problem: ConvProblem) -> ConvProblem:
    return problem._replace(input_layout="channels_last", weight_layout="channels_last")


def forward(
    originals: Originals, input: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    converted = input.contiguous(memory_format=torch.channels_last)
    output = as_is.forward(originals, converted, weight, bias, problem)
    del converted  # before the third copy
    return in_format(output, problem.channels_last)


def input_gradient(
    originals: Originals, grad_output: Tensor, weight: Tensor, problem: ConvProblem
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    converted = grad_output.contiguous(memory_format=torch.channels_last)
    gradient = as_is.input_gradient(originals, converted, weight, _converted(problem))
    del converted
    return in_format(gradient, problem.channels_last)


def weight_gradient(
    originals: Originals, grad_output: Tensor, input: Tensor, problem: ConvProblem
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    gradient = as_is.weight_gradient(
        originals,
        grad_output.contiguous(memory_format=torch.channels_last),
        input.contiguous(memory_format=torch.channels_last),
        _converted(problem),
    )
    return in_weight_format(gradient, problem)
