"""The native kernel of bfloat16 products and float32 sums.

It takes bfloat16 tensors, or rounds the operands of float32 ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.kernels import algorithms, conv2d_algorithms, isa
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.convolution.native import geometry_plan, nhwc
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem

(_ALGORITHM,) = (name for name, row in algorithms().items() if "bfloat16" in row.dtypes)


def supports(dtype: str) -> Callable[[ConvProblem], bool]:
    """Return the test for problems of this dtype, on processors that multiply bfloat16 pairs."""

    def answer(problem: ConvProblem) -> bool:
        if problem.dtype != dtype or problem.empty or problem.deterministic:
            return False
        if algorithms()[_ALGORITHM].emulated:
            return False  # the results are the same, but slower than float32
        return _ALGORITHM in conv2d_algorithms(
            nhwc(problem.input_shape),
            nhwc(problem.weight_shape),
            stride=problem.stride,
            padding=problem.padding,
            dilation=problem.dilation,
            groups=problem.groups,
            dtype=dtype,
        )

    return answer


def forward(
    originals: Originals, input: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    x = input.contiguous(memory_format=torch.channels_last)
    packed = None
    if problem.frozen and originals.packed is not None:
        packed = originals.packed.get(weight, _ALGORITHM, problem.groups)
    w = None if packed is not None else weight.contiguous(memory_format=torch.channels_last)
    output = torch.empty(
        problem.output_shape, dtype=x.dtype, device="cpu", memory_format=torch.channels_last
    )
    bias = None if bias is None else bias.float().contiguous()
    plan = geometry_plan(
        _ALGORITHM,
        "forward",
        nhwc(problem.input_shape),
        nhwc(problem.weight_shape),
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
        isa(),
        problem.dtype,
    )
    plan.run(
        x.data_ptr(),
        packed if w is None else w.data_ptr(),  # type: ignore[arg-type]  # one of them is there
        output.data_ptr(),
        0 if bias is None else bias.data_ptr(),
    )
    return in_format(output, problem.channels_last)
