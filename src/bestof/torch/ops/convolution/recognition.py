"""Decides which calls of PyTorch's convolution bestof chooses for, and finds their problems."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.backends.device import Device
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, of_operands
from bestof.torch.ops.guards import PLAIN, passes_through
from bestof.torch.ops.memory_format import layout_of

# The least multiplications of a convolution in another form than 2-D and ordinary. PyTorch computes
# fewer in 80 microseconds, and calls of these forms are answered from Python.
LEAST_PRODUCTS = 2**22
_DTYPES = of_operands((FLOAT32, FLOAT64, BFLOAT16, FLOAT16))
# Limits of stride, padding and dilation, and of the elements of a padded image. No memory holds
# more. PyTorch answers or refuses such a call at once.
_ABSURD = 2**24
LARGEST = 2**36
_threads = torch.get_num_threads
_tracing = torch._C._get_tracing_state

Geometry = tuple[Sequence[int], Sequence[int], Sequence[int], int]
"""Stride, padding, dilation and groups, as PyTorch hands them on."""
Mask = tuple[bool, bool, bool]


def look_of(
    device: Device,
    accuracy: Accuracy,
    input: Tensor,
    weight: Tensor,
    has_bias: bool,
    geometry: Geometry,
) -> tuple[Hashable, ...] | None:
    """Return the cache key of a call, or None if the call is passed through to PyTorch.

    Two calls with equal keys have the same problem. These calls are passed through: subclasses of
    Tensor, other dtypes and devices, sparse tensors, traced calls, and all calls while results must
    be exact or deterministic.
    """
    if type(input) not in PLAIN or type(weight) not in PLAIN:
        return None
    dtype = input.dtype
    if (
        dtype not in _DTYPES
        or accuracy == "exact"
        or weight.dtype is not dtype
        or not input.layout is weight.layout is torch.strided
        or not device.holds(input)
        or not device.holds(weight)
        or passes_through()
    ):
        return None
    stride, padding, dilation, groups = geometry
    return (
        input.shape,
        input.stride(),
        weight.shape,
        weight.stride(),
        dtype,
        has_bias,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        _threads(),
        device.name(input),
        accuracy,
    )


def problem_of(
    device: Device,
    accuracy: Accuracy,
    input: Tensor,
    weight: Tensor,
    has_bias: bool,
    geometry: Geometry,
) -> ConvProblem | None:
    """Return the problem of a call that has a look; None if it is no valid 2-D convolution."""
    stride, padding, dilation, groups = geometry
    if not _is_valid(input.shape, weight.shape, geometry):
        return None
    problem = ConvProblem.of(input, weight, has_bias, stride, padding, dilation, groups)
    problem = problem._replace(device=device.name(input), accuracy=accuracy)
    if min(problem.output_size) < 1 or problem.largest_image > LARGEST:
        return None
    return problem


def is_worth(input: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution that is not 2-D, or is transposed, takes long enough to choose.

    This is asked before anything else, and takes 0.4 microseconds for a small convolution. An input
    of stride 1 meets each weight about once for each of its elements and filters. While a call is
    traced, sizes are tensors.
    """
    return (
        type(input) in PLAIN
        and type(weight) in PLAIN
        and _tracing() is None
        and (pairs := input.numel() * weight.numel()) >= LEAST_PRODUCTS
        and input.dim() > 2
        and pairs >= LEAST_PRODUCTS * input.size(1)
    )


def is_bias(device: Device, bias: Tensor, weight: Tensor) -> bool:
    """Return whether a tensor is a bias that fits these weights."""
    return (
        type(bias) in PLAIN
        and bias.dtype is weight.dtype
        and device.holds(bias)
        and bias.shape == weight.shape[:1]
    )


def is_gradient(device: Device, grad_output: Tensor, input: Tensor) -> bool:
    """Return whether a tensor may be the gradient of a convolution of this input."""
    return (
        type(grad_output) in PLAIN
        and type(input) in PLAIN  # before its dtype is asked for, which a subclass would see
        and grad_output.dtype is input.dtype
        and grad_output.layout is torch.strided
        and device.holds(grad_output)
    )


def backward_of(
    problem: ConvProblem | None, grad_output: Tensor, wanted: tuple[bool, bool], mask: Mask
) -> tuple[LayerProblem, str, Mask] | None:
    """Return a backward pass's layer, the layout of its gradient, and which gradients it wants.

    wanted: whether input and weight require gradients.
    """
    if problem is None or grad_output.shape != problem.output_shape:
        return None
    return LayerProblem(problem, *wanted), layout_of(grad_output), mask


def _is_valid(x: Sequence[int], w: Sequence[int], geometry: Geometry) -> bool:
    groups = geometry[3]
    return are_usual(x, w, geometry) and x[1] == w[1] * groups and w[0] % groups == 0


def are_usual(x: Sequence[int], w: Sequence[int], geometry: Geometry, axes: int = 2) -> bool:
    """Return whether the numbers of a convolution over so many axes are there, and in range.

    The shapes of input and weight have no zeros then. Whether they fit is not asked.
    """
    stride, padding, dilation, groups = geometry
    return (
        len(x) == len(w) == axes + 2
        and len(stride) == len(padding) == len(dilation) == axes
        and groups > 0
        and 0 not in x
        and 0 not in w
        and min(*stride, *dilation) > 0
        and min(padding) >= 0
        and max(*stride, *padding, *dilation) < _ABSURD
    )
