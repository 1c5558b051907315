"""PyTorch's own kernels: the first row of every pass."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from bestof.torch.ops.convolution.direction import EVERYWHERE, Passes
from bestof.torch.ops.convolution.estimate import direct, direct_input_gradient
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.memory_format import placeholder
from bestof.torch.ops.row import Row


def forward(
    originals: PyTorchConv, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    output: Tensor = originals.convolution(
        input,
        weight,
        bias,
        *_geometry(problem),
    )
    return output


def input_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    gradient: Tensor = originals.convolution_backward(
        grad_output,
        placeholder(weight, problem.input_shape, problem.input_layout == "channels_last"),
        weight,
        None,
        *_geometry(problem),
        (True, False, False),
    )[0]
    return gradient


def weight_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    gradient: Tensor = originals.convolution_backward(
        grad_output,
        input,
        placeholder(input, problem.weight_shape, problem.weight_layout == "channels_last"),
        None,
        *_geometry(problem),
        (False, True, False),
    )[1]
    # The placeholder has the plain strides of its layout; a sliced weight has others.
    return in_weight_format(gradient, problem)


def gradients(
    originals: PyTorchConv,
    problem: ConvProblem,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    mask: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias that `mask` asks for, by one call."""
    return originals.convolution_backward(  # type: ignore[no-any-return]
        grad_output,
        input,
        weight,
        problem.weight_shape[:1],
        *_geometry(problem),
        mask,
    )


def _geometry(problem: ConvProblem) -> tuple[object, ...]:
    """Return the arguments of both operators from stride to groups; none is transposed."""
    return problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups


_row = partial(Row, "as is", devices=EVERYWHERE)
ROWS: Passes = (
    _row(forward, estimate=direct),
    _row(input_gradient, estimate=direct_input_gradient),
    _row(weight_gradient, estimate=direct),
)
