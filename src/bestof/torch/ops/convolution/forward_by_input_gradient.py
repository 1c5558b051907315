"""The forward pass by PyTorch's kernel for input gradients, with rotated weights and stride 1."""

from __future__ import annotations

from torch import Tensor

from bestof.torch.ops.convolution import onednn
from bestof.torch.ops.convolution.direction import EVERYWHERE, Pass
from bestof.torch.ops.convolution.estimate import direct
from bestof.torch.ops.convolution.pads import Pads, pad, symmetric
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.swapped_operands import (
    Pair,
    complement,
    output_size,
    turned_weight,
)
from bestof.torch.ops.dtypes import WIDE
from bestof.torch.ops.memory_format import in_format, placeholder
from bestof.torch.ops.row import Row


def supports(problem: ConvProblem) -> bool:
    """Return whether stride (1) and padding (within the kernel) allow it."""
    return (
        not problem.empty
        and problem.stride == (1, 1)
        and min(side for axis in _complement(problem) for side in axis) >= 0
        and (not problem.channels_last or onednn.serves(_input_gradient(problem), "input gradient"))
    )


def _input_gradient(problem: ConvProblem) -> ConvProblem:
    """Return the problem of PyTorch's input gradient, whose image is the output."""
    k, c, r, s = problem.weight_shape
    (vertical, _), (horizontal, _) = _complement(problem)
    return problem._replace(
        input_shape=problem.output_shape,
        weight_shape=(c * problem.groups, k // problem.groups, r, s),
        padding=(vertical, horizontal),
    )


def _complement(problem: ConvProblem) -> Pads:
    return complement(symmetric(problem.padding), problem.weight_shape[2:], problem.dilation)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate: PyTorch's input gradient took 0.9 to 3.8 times its forward pass."""
    return 1.3 * direct(problem)


def convolve(
    originals: PyTorchConv,
    input: Tensor,
    weight: Tensor,
    pads: Pads,
    dilation: Pair,
    groups: int,
    channels_last: bool,
) -> Tensor:
    """Return the output (N, K, P, Q) for one-sided pads, none larger than dilation (R - 1).

    PyTorch's input gradient crops both sides equally. If one side needs more, this function crops
    the rest.
    """
    kernel = (weight.shape[2], weight.shape[3])
    height, width = output_size((input.shape[2], input.shape[3]), kernel, pads, (1, 1), dilation)
    (top, bottom), (left, right) = complement(pads, kernel, dilation)
    padding = (min(top, bottom), min(left, right))
    shape = (
        input.shape[0],
        weight.shape[0],
        height + top + bottom - 2 * padding[0],
        width + left + right - 2 * padding[1],
    )
    output: Tensor = originals.convolution_backward(
        input,
        placeholder(input, shape, channels_last),
        turned_weight(weight, groups),
        None,
        (1, 1),
        padding,
        dilation,
        False,
        (0, 0),
        groups,
        (True, False, False),
    )[0]
    return pad(
        output, ((padding[0] - top, padding[0] - bottom), (padding[1] - left, padding[1] - right))
    )


def forward(
    originals: PyTorchConv, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    pads = symmetric(problem.padding)
    output = convolve(
        originals, input, weight, pads, problem.dilation, problem.groups, problem.channels_last
    )
    if bias is not None:
        output += bias.reshape(-1, 1, 1)
    return in_format(output, problem.channels_last)


ROW: Pass = Row(
    "swap: input gradient",
    forward,
    supports,
    dtypes=WIDE,
    estimate=estimate,
    accuracy="float32",
    devices=EVERYWHERE,
)
