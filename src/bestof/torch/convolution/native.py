"""The native float32 kernels as alternatives.

Tensors that are not float32 in channels last are copied first; the time of an alternative includes
these conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from bestof.kernels import Conv2dPlan, algorithms, conv2d_algorithms, isa
from bestof.kernels.addresses import c_calls, plan_address
from bestof.torch.convolution.estimate import (
    Estimate,
    in_channels_last,
    in_float32,
    input_gradient_in_channels_last,
    native_weight_gradient,
    winograd,
    winograd_strided,
    winograd_strided7,
)
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.other_dtype import back
from bestof.torch.convolution.packed_weights import lending_key
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.shim import NativeConvolution


def supports(
    algorithm: str, direction: str, dtype: str = "float32"
) -> Callable[[ConvProblem], bool]:
    """Return the test for problems of this dtype that a native algorithm computes."""

    def answer(problem: ConvProblem) -> bool:
        if (
            problem.dtype != dtype
            or problem.empty
            or problem.deterministic
            or min(problem.output_size) < 1
        ):
            return False
        x, w = nhwc(problem.input_shape), nhwc(problem.weight_shape)
        return algorithm in conv2d_algorithms(
            x,
            w,
            stride=problem.stride,
            padding=problem.padding,
            dilation=problem.dilation,
            groups=problem.groups,
            direction=direction,
        )

    return answer


# The cost models of tiles. A row without one is tried for each convolution that it supports.
_ESTIMATES: dict[str, Estimate] = {
    **{f"winograd{size}": winograd(size) for size in (2, 4, 6)},
    "winograd3_s2": winograd_strided,
    "winograd3_7x7_s2": winograd_strided7,
}


def estimate(algorithm: str, direction: str) -> Estimate | None:
    """Return the estimate of a native algorithm for one pass; None if it is always tried."""
    plain = input_gradient_in_channels_last if direction == "backward_input" else in_channels_last
    computes_all = algorithms()[algorithm].shapes == "any"
    found = plain if computes_all else _ESTIMATES.get(algorithm)
    if found is None or direction != "backward_weight":
        return found
    return native_weight_gradient(found)


def estimate_in_float32(algorithm: str, direction: str) -> Estimate | None:
    """Return the same for bfloat16 problems, between conversions."""
    found = estimate(algorithm, "forward" if direction == "backward_weight" else direction)
    return None if found is None else in_float32(found)


def forward(algorithm: str) -> Callable[..., Tensor]:
    """Return the function (originals, input, weight, bias, problem) -> output (N, K, P, Q)."""

    def run(
        originals: Originals,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        problem: ConvProblem,
    ) -> Tensor:
        x = _rows(input)
        packed = None
        if problem.frozen and originals.packed is not None:
            packed = originals.packed.get(weight, algorithm, problem.groups)
        w = None if packed is not None else _rows(weight)
        output = torch.empty(
            problem.output_shape, dtype=x.dtype, device="cpu", memory_format=torch.channels_last
        )
        bias = bias.to(x.dtype).contiguous() if bias is not None else None
        _plan(algorithm, "forward", problem).run(
            x.data_ptr(),
            packed if w is None else w.data_ptr(),  # type: ignore[arg-type]  # one of them is there
            output.data_ptr(),
            0 if bias is None else bias.data_ptr(),
        )
        return _finished(output, problem)

    return run


def compiled_forward(algorithm: str) -> Callable[[ConvProblem], NativeConvolution]:
    """Return the function from a float32 problem to its kernel for calls without Python."""

    @lru_cache(maxsize=1024)
    def make(problem: ConvProblem) -> NativeConvolution:
        plan = _plan(algorithm, "forward", problem)
        return NativeConvolution(
            plan,
            c_calls(),
            plan_address(plan),
            problem.input_shape,
            problem.weight_shape,
            problem.output_size,
            problem.channels_last,
            lending_key(algorithm, problem.groups, problem.weight_shape) if problem.frozen else 0,
        )

    return make


def input_gradient(algorithm: str) -> Callable[..., Tensor]:
    """Return (originals, grad_output, weight, problem) -> gradient of the input (N, C, H, W)."""

    def run(
        _originals: Originals, grad_output: Tensor, weight: Tensor, problem: ConvProblem
    ) -> Tensor:
        grad, w = _rows(grad_output), _rows(weight)
        gradient = torch.empty(
            problem.input_shape, dtype=grad.dtype, device="cpu", memory_format=torch.channels_last
        )
        _plan(algorithm, "backward_input", problem).run(
            grad.data_ptr(), w.data_ptr(), gradient.data_ptr()
        )
        return _finished(gradient, problem)

    return run


def weight_gradient(algorithm: str) -> Callable[..., Tensor]:
    """Return (originals, grad_output, input, problem) -> gradient of the weight (K, C/g, R, S)."""

    def run(
        _originals: Originals, grad_output: Tensor, input: Tensor, problem: ConvProblem
    ) -> Tensor:
        grad, x = _rows(grad_output), _rows(input)
        gradient = torch.empty(
            problem.weight_shape, dtype=grad.dtype, device="cpu", memory_format=torch.channels_last
        )
        _plan(algorithm, "backward_weight", problem).run(
            grad.data_ptr(), x.data_ptr(), gradient.data_ptr()
        )
        return _finished(gradient, problem)

    return run


def _plan(algorithm: str, direction: str, problem: ConvProblem) -> Conv2dPlan:
    return geometry_plan(
        algorithm,
        direction,
        nhwc(problem.input_shape),
        nhwc(problem.weight_shape),
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
        isa(),
    )


@lru_cache(maxsize=1024)
def geometry_plan(
    algorithm: str,
    direction: str,
    x_shape: tuple[int, int, int, int],
    w_shape: tuple[int, int, int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    _isa: str,
    dtype: str = "float32",
) -> Conv2dPlan:
    """Return the plan of an algorithm for one geometry, made once for an instruction set."""
    return Conv2dPlan(
        x_shape,
        w_shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        algorithm=algorithm,
        direction=direction,
        dtype=dtype,
    )


def nhwc(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return a shape (N, C, H, W) in the order of the kernels: (N, H, W, C)."""
    n, c, h, w = shape
    return n, h, w, c


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor as the kernels read it, converted in one pass if it must be."""
    if tensor.dtype is torch.float32:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.to(torch.float32, memory_format=torch.channels_last)


def _finished(result: Tensor, problem: ConvProblem) -> Tensor:
    return (
        in_format(result, problem.channels_last)
        if problem.dtype == "float32"
        else back(result, problem)
    )
