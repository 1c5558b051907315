"""PyTorch's own kernels in another dtype, on channels-last copies.

bfloat16 tensors are computed in float32: more exact, and faster if the processor has no
instructions for bfloat16. float32 tensors are computed in bfloat16: half the bytes, and up to twice
the rate with such instructions, but operands and result lose 16 bits. The time of an alternative
includes both conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.convolution import as_is, onednn
from bestof.torch.convolution.memory_format import in_format, torch_format
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.row import Direction
from bestof.torch.convolution.weight_format import in_weight_format

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@cache
def has_bfloat16() -> bool:
    """Return whether PyTorch multiplies in bfloat16 and sums in float32 here: from AVX-512 on."""
    backends: Any = torch.backends  # has no annotations
    return bool(backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def supports(given: str, inside: str, direction: Direction) -> Callable[[ConvProblem], bool]:
    """Return the test for non-empty problems of dtype `given` that `inside` can compute."""

    def answer(problem: ConvProblem) -> bool:
        return (
            problem.dtype == given
            and not problem.empty
            and (inside != "bfloat16" or has_bfloat16())
            and onednn.serves(_converted(problem)._replace(dtype=inside), direction)
        )

    return answer


def forward(inside: str) -> Callable[..., Tensor]:
    """Return the function (originals, input, weight, bias, problem) -> output (N, K, P, Q)."""
    dtype = DTYPES[inside]

    def run(
        originals: Originals,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        problem: ConvProblem,
    ) -> Tensor:
        bias = None if bias is None else bias.to(dtype)
        output = as_is.forward(
            originals, _there(input, dtype), _there(weight, dtype), bias, problem
        )
        return back(output, problem)

    return run


def input_gradient(inside: str) -> Callable[..., Tensor]:
    """Return (originals, grad_output, weight, problem) -> gradient of the input (N, C, H, W)."""
    dtype = DTYPES[inside]

    def run(
        originals: Originals, grad_output: Tensor, weight: Tensor, problem: ConvProblem
    ) -> Tensor:
        there = _there(grad_output, dtype), _there(weight, dtype)
        return back(as_is.input_gradient(originals, *there, _converted(problem)), problem)

    return run


def weight_gradient(inside: str) -> Callable[..., Tensor]:
    """Return (originals, grad_output, input, problem) -> gradient of the weight (K, C/g, R, S)."""
    dtype = DTYPES[inside]

    def run(
        originals: Originals, grad_output: Tensor, input: Tensor, problem: ConvProblem
    ) -> Tensor:
        there = _there(grad_output, dtype), _there(input, dtype)
        gradient = as_is.weight_gradient(originals, *there, _converted(problem))
        return in_weight_format(back(gradient, problem), problem)

    return run


def _converted(problem: ConvProblem) -> ConvProblem:
    return problem._replace(input_layout="channels_last", weight_layout="channels_last")


def _there(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert dtype and layout in one pass over the elements."""
    return tensor.to(dtype, memory_format=torch.channels_last)


def back(result: Tensor, problem: ConvProblem) -> Tensor:
    """Return the result in the dtype and format that PyTorch would return, in one pass."""
    result = result.to(DTYPES[problem.dtype], memory_format=torch_format(problem.channels_last))
    return in_format(result, problem.channels_last)
