"""The native kernels as alternatives.

A kernel takes tensors in channels last, of float32 unless its row has another dtype. Other tensors
are copied first; the time of an alternative includes these conversions.

Winograd's algorithms transform tiles, so the rounding of one huge element, or NaN, would reach all
results of a tile. They look at the operands first. If an element stands out, PyTorch's own kernel
computes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial

import torch
from torch import Tensor

from bestof.kernels import Algorithm, Conv2dPlan, Promise, algorithms, conv2d_algorithms, isa
from bestof.kernels.addresses import c_calls, plan_address
from bestof.torch.backends.shim import Native, native_convolution
from bestof.torch.ops import bound
from bestof.torch.ops.bound import DIRECT, ErrorBound
from bestof.torch.ops.convolution import as_is
from bestof.torch.ops.convolution.direction import Direction, Pass, Passes
from bestof.torch.ops.convolution.estimate import (
    Estimate,
    in_channels_last,
    in_float32,
    input_gradient_in_channels_last,
    native_weight_gradient,
    winograd,
    winograd_strided,
    winograd_strided7,
)
from bestof.torch.ops.convolution.other_dtype import back
from bestof.torch.ops.convolution.packed_weights import lending_key
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.promise import promise
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32, HALVES, Dtypes
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.row import Row


def supports(algorithm: str, direction: str) -> Callable[[ConvProblem], bool]:
    """Return the test for problems of the row's dtypes that a native algorithm computes."""

    def answer(problem: ConvProblem) -> bool:
        if (
            problem.empty
            or min(problem.output_size) < 1
            or algorithms()[algorithm].emulated  # the same results, but slower than float32
        ):
            return False
        dtype = _dtype_of(algorithm, direction, problem)
        return algorithm in _promises(direction, problem, dtype)

    return answer


def _dtype_of(algorithm: str, direction: str, problem: ConvProblem) -> str:
    return _computed_in(algorithm, problem.dtype) if direction == "forward" else "float32"


def _promises(direction: str, problem: ConvProblem, dtype: str) -> Mapping[str, Promise]:
    return conv2d_algorithms(
        nhwc(problem.input_shape),
        nhwc(problem.weight_shape),
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
        direction=direction,
        dtype=dtype,
    )


def scratch(algorithm: str, direction: str) -> Callable[[ConvProblem], int]:
    """Return the function from a problem that is supported to the bytes of scratch."""

    def answer(problem: ConvProblem) -> int:
        found = _promises(direction, problem, _dtype_of(algorithm, direction, problem))
        return found[algorithm].scratch_bytes

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
    """Return the same for problems of half types, between conversions."""
    found = estimate(algorithm, "forward" if direction == "backward_weight" else direction)
    return None if found is None else in_float32(found)


def forward(algorithm: str) -> Callable[..., Tensor]:
    """Return the function (originals, problem, input, weight, bias) -> output (N, K, P, Q)."""

    def run(
        originals: PyTorchConv,
        problem: ConvProblem,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        dtype = _computed_in(algorithm, problem.dtype)
        x = _rows(input, getattr(torch, dtype))
        packed = None
        if problem.frozen and originals.packed is not None:
            packed = originals.packed.get(weight, algorithm, problem.groups)
        w = None if packed is not None else _rows(weight, x.dtype)
        output = torch.empty(
            problem.output_shape, dtype=x.dtype, device="cpu", memory_format=torch.channels_last
        )
        terms = None if bias is None else bias.float().contiguous()
        ran = _plan(algorithm, "forward", problem, dtype).run(
            x.data_ptr(),
            packed if w is None else w.data_ptr(),  # type: ignore[arg-type]  # one of them is there
            output.data_ptr(),
            0 if terms is None else terms.data_ptr(),
        )
        del x, w  # copies, perhaps; the result is converted into a third
        if not ran:  # an element stands out
            originals.refused.count(problem)
            return as_is.forward(originals, problem, input, weight, bias)
        return _finished(output, problem)

    return run


def compiled_forward(algorithm: str) -> Callable[..., Native]:
    """Return the function from a float32 problem to its kernel for calls without Python."""

    @lru_cache(maxsize=1024)
    def make(problem: ConvProblem) -> Native:
        plan = _plan(algorithm, "forward", problem)
        return native_convolution(
            plan,
            c_calls(),
            plan_address(plan),
            problem.input_shape,
            problem.weight_shape,
            problem.output_size,
            problem.channels_last,
            lending_key(algorithm, problem.groups, problem.weight_shape) if problem.frozen else 0,
        )

    return lambda problem, *_operands: make(problem)


def gradient(algorithm: str, direction: str) -> Callable[..., Tensor]:
    """Return the function of one backward pass.

    It is (originals, problem, grad_output, weight) -> gradient of the input (N, C, H, W), or
    (originals, problem, grad_output, input) -> gradient of the weight (K, C/g, R, S).
    """
    of_input = direction == "backward_input"

    def run(
        originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, operand: Tensor
    ) -> Tensor:
        grad, other = _rows(grad_output), _rows(operand)
        gradient = torch.empty(
            problem.input_shape if of_input else problem.weight_shape,
            dtype=grad.dtype,
            device="cpu",
            memory_format=torch.channels_last,
        )
        ran = _plan(algorithm, direction, problem).run(
            grad.data_ptr(), other.data_ptr(), gradient.data_ptr()
        )
        del grad, other  # as in a forward pass
        if not ran:  # an element stands out
            originals.refused.count(problem)
            by_pytorch = as_is.input_gradient if of_input else as_is.weight_gradient
            return by_pytorch(originals, problem, grad_output, operand)
        result = _finished(gradient, problem)
        return result if of_input else in_weight_format(result, problem)

    return run


@cache
def _computed_in(algorithm: str, dtype: str) -> str:
    """Return the dtype of the tensors that a forward pass is given for problems of a dtype."""
    return dtype if dtype in algorithms()[algorithm].dtypes else "float32"


def _plan(
    algorithm: str, direction: str, problem: ConvProblem, dtype: str = "float32"
) -> Conv2dPlan:
    return _geometry_plan(
        algorithm,
        direction,
        nhwc(problem.input_shape),
        nhwc(problem.weight_shape),
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
        isa(),
        dtype,
    )


@lru_cache(maxsize=1024)
def _geometry_plan(
    algorithm: str,
    direction: str,
    x_shape: tuple[int, int, int, int],
    w_shape: tuple[int, int, int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    _isa: str,
    dtype: str,
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
        looks=True,
    )


def nhwc(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return a shape (N, C, H, W) in the order of the kernels: (N, H, W, C)."""
    n, c, h, w = shape
    return n, h, w, c


def _rows(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor as the kernels read it, converted in one pass if it must be."""
    if tensor.dtype is dtype:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.to(dtype, memory_format=torch.channels_last)


def _finished(result: Tensor, problem: ConvProblem) -> Tensor:
    """Return a result in the dtype and format that PyTorch would return."""
    if result.dtype is getattr(torch, problem.dtype):
        return in_format(result, problem.channels_last)
    return back(result, problem)


def _row(algorithm: Algorithm, direction: Direction, dtypes: tuple[Dtypes, ...]) -> Pass:
    """Return the row of a pass of a native algorithm, for problems of float32 or of half types.

    The latter are computed between conversions. All levels of accuracy allow that: even the error
    of F(6) is far below that of rounding the result.
    """
    name, plain = algorithm.name, dtypes == (FLOAT32,)
    way = _WAYS[direction]
    return Row(
        f"native {name}" if plain else f"float32 native {name}",
        forward(name) if direction == "forward" else gradient(name, way),
        supports(name, way),
        dtypes=dtypes,
        bound=promise(ErrorBound(algorithm.error.rms, algorithm.error.maximum), direction),
        estimate=(estimate if plain else estimate_in_float32)(name, way),
        accuracy=algorithm.accuracy if plain else "float32",
        compiled=compiled_forward(name) if plain and direction == "forward" else None,
        scratch=scratch(name, way),
        reach=algorithm.reach,
    )


def _between_conversions(algorithm: Algorithm) -> Passes:
    """Return the passes of half types. A forward pass that reads such a type has another row."""
    row = partial(_row, algorithm)
    read = tuple(one for one in HALVES if one.operands not in algorithm.dtypes)
    return row("forward", read), row("input gradient", HALVES), row("weight gradient", HALVES)


def _by_bfloat16(label: str, name: str) -> Passes:
    """Return the forward pass of an algorithm that reads tensors of bfloat16.

    All levels of accuracy allow it, as between conversions.
    """
    algorithm = algorithms()[name]
    sums = DIRECT
    if algorithm.transforms:
        sums = ErrorBound(algorithm.error.rms, algorithm.error.maximum)
    row: Pass = Row(
        label,
        forward(name),
        supports(name, "forward"),
        dtypes=(BFLOAT16,),
        bound=promise(sums, "forward"),
        estimate=estimate(name, "forward") if algorithm.transforms else None,
        accuracy="float32",
        scratch=scratch(name, "forward"),
        reach=algorithm.reach,
    )
    return row, None, None


_WAYS: dict[Direction, str] = {
    "forward": "forward",
    "input gradient": "backward_input",
    "weight gradient": "backward_weight",
}
"""The names of the passes in `bestof.kernels`."""

EAGER: tuple[Algorithm, ...] = tuple(row for row in algorithms().values() if row.eager)
"""The native algorithms that eager programs try. The native im2row is not among them: it is within
a few percent of convgemm, and PyTorch's product stands in the table."""

# The kernel that multiplies pairs of bfloat16: it takes such tensors, or rounds those of float32.
(_PAIRS,) = (
    name for name, row in algorithms().items() if "bfloat16" in row.dtypes and row.rounds == "both"
)

# The kernels that sum tensors of bfloat16 in float32.
_WIDENING = tuple(row.name for row in EAGER if "bfloat16" in row.dtypes)

IN_FLOAT32: tuple[Passes, ...] = tuple(
    (
        _row(row, "forward", (FLOAT32,)),
        _row(row, "input gradient", (FLOAT32,)),
        _row(row, "weight gradient", (FLOAT32,)),
    )
    for row in EAGER
)
BETWEEN_CONVERSIONS = tuple(map(_between_conversions, EAGER))
IN_BFLOAT16 = (
    _by_bfloat16("native bfloat16", _PAIRS),
    *(_by_bfloat16(f"native bfloat16 {name}", name) for name in _WIDENING),
)
BFLOAT16_INSIDE: Passes = (
    Row(
        "bfloat16 native",
        forward(_PAIRS),
        supports(_PAIRS, "forward"),
        dtypes=(FLOAT32,),
        bound=promise(bound.BFLOAT16_INSIDE, "forward"),
        accuracy="relaxed",
    ),
    None,
    None,
)
