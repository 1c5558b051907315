"""PyTorch's own kernels on channels-last copies. The time includes both conversions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.torch.ops.convolution import as_is, onednn
from bestof.torch.ops.convolution.direction import EVERYWHERE, Direction, Pass, Passes
from bestof.torch.ops.convolution.estimate import in_channels_last, input_gradient_in_channels_last
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import BFLOAT16, WIDE
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.row import Row


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


def is_right_as_is(problem: ConvProblem, direction: Direction) -> bool:
    """Return whether PyTorch's own kernel is known to be right in the layouts of a problem.

    Ask this before a call that the program does not make itself.
    """
    layouts = problem.input_layout, problem.weight_layout, problem.grad_layout
    if "channels_last" not in layouts:
        return True
    return not reads_strides(problem) and onednn.serves(problem, direction)


def _converted(problem: ConvProblem) -> ConvProblem:
    return problem._replace(input_layout="channels_last", weight_layout="channels_last")


def forward(
    originals: PyTorchConv, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    converted = input.contiguous(memory_format=torch.channels_last)
    output = as_is.forward(originals, problem, converted, weight, bias)
    del converted  # before the third copy
    return in_format(output, problem.channels_last)


def input_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    converted = grad_output.contiguous(memory_format=torch.channels_last)
    gradient = as_is.input_gradient(originals, _converted(problem), converted, weight)
    del converted
    return in_format(gradient, problem.channels_last)


def weight_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    gradient = as_is.weight_gradient(
        originals,
        _converted(problem),
        grad_output.contiguous(memory_format=torch.channels_last),
        input.contiguous(memory_format=torch.channels_last),
    )
    return in_weight_format(gradient, problem)


def _row(
    function: Callable[..., Tensor], direction: Direction, cost: Callable[[ConvProblem], float]
) -> Pass:
    return Row(
        "channels last",
        function,
        supports(direction),
        estimate=cost,
        dtypes=(*WIDE, BFLOAT16),
        accuracy="float32",
        devices=EVERYWHERE,
    )


ROWS: Passes = (
    _row(forward, "forward", in_channels_last),
    _row(input_gradient, "input gradient", input_gradient_in_channels_last),
    _row(weight_gradient, "weight gradient", in_channels_last),
)
