"""PyTorch's own kernels in another dtype, on channels-last copies.

Tensors of bfloat16 and float16 are computed in float32: more exact, and faster if the processor
has no instructions for these types. float32 tensors are computed in bfloat16: half the bytes, and
up to twice the rate with such instructions, but operands and result lose 16 bits. The time of an
alternative includes both conversions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.torch.ops.bound import BFLOAT16_INSIDE
from bestof.torch.ops.convolution import as_is, onednn
from bestof.torch.ops.convolution.direction import Direction, Pass, Passes
from bestof.torch.ops.convolution.estimate import (
    in_channels_last,
    in_float32,
    input_gradient_in_channels_last,
)
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.promise import promise
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import FLOAT32, HALVES
from bestof.torch.ops.memory_format import in_format, torch_format
from bestof.torch.ops.onednn import has_bfloat16
from bestof.torch.ops.row import Row


def supports(inside: str, direction: Direction) -> Callable[[ConvProblem], bool]:
    """Return the test for non-empty problems that the dtype `inside` can compute."""

    def answer(problem: ConvProblem) -> bool:
        return (
            not problem.empty
            and (inside != "bfloat16" or has_bfloat16())
            and onednn.serves(_converted(problem)._replace(dtype=inside), direction)
        )

    return answer


def forward(inside: str) -> Callable[..., Tensor]:
    """Return the function (originals, problem, input, weight, bias) -> output (N, K, P, Q)."""
    dtype = getattr(torch, inside)

    def run(
        originals: PyTorchConv,
        problem: ConvProblem,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        bias = None if bias is None else bias.to(dtype)
        output = as_is.forward(
            originals, problem, _there(input, dtype), _there(weight, dtype), bias
        )
        return back(output, problem)

    return run


def input_gradient(inside: str) -> Callable[..., Tensor]:
    """Return (originals, problem, grad_output, weight) -> gradient of the input (N, C, H, W)."""
    dtype = getattr(torch, inside)

    def run(
        originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
    ) -> Tensor:
        there = _there(grad_output, dtype), _there(weight, dtype)
        return back(as_is.input_gradient(originals, _converted(problem), *there), problem)

    return run


def weight_gradient(inside: str) -> Callable[..., Tensor]:
    """Return (originals, problem, grad_output, input) -> gradient of the weight (K, C/g, R, S)."""
    dtype = getattr(torch, inside)

    def run(
        originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
    ) -> Tensor:
        there = _there(grad_output, dtype), _there(input, dtype)
        gradient = as_is.weight_gradient(originals, _converted(problem), *there)
        return in_weight_format(back(gradient, problem), problem)

    return run


def _converted(problem: ConvProblem) -> ConvProblem:
    return problem._replace(input_layout="channels_last", weight_layout="channels_last")


def _there(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert dtype and layout in one pass over the elements."""
    return tensor.to(dtype, memory_format=torch.channels_last)


def back(result: Tensor, problem: ConvProblem) -> Tensor:
    """Return the result in the dtype and format that PyTorch would return, in one pass."""
    dtype = getattr(torch, problem.dtype)
    result = result.to(dtype, memory_format=torch_format(problem.channels_last))
    return in_format(result, problem.channels_last)


def _in_bfloat16(function: Callable[..., Tensor], direction: Direction) -> Pass:
    return Row(
        "bfloat16",
        function,
        supports("bfloat16", direction),
        dtypes=(FLOAT32,),
        bound=promise(BFLOAT16_INSIDE, direction),
        accuracy="relaxed",
    )


def _in_float32(
    function: Callable[..., Tensor], direction: Direction, cost: Callable[[ConvProblem], float]
) -> Pass:
    return Row(
        "float32",
        function,
        supports("float32", direction),
        dtypes=HALVES,
        estimate=in_float32(cost),
        accuracy="float32",
    )


IN_BFLOAT16: Passes = (
    _in_bfloat16(forward("bfloat16"), "forward"),
    _in_bfloat16(input_gradient("bfloat16"), "input gradient"),
    _in_bfloat16(weight_gradient("bfloat16"), "weight gradient"),
)
IN_FLOAT32: Passes = (
    _in_float32(forward("float32"), "forward", in_channels_last),
    _in_float32(input_gradient("float32"), "input gradient", input_gradient_in_channels_last),
    _in_float32(weight_gradient("float32"), "weight gradient", in_channels_last),
)
