"""The input gradient by a forward convolution of the gradient with rotated weights.

Strides become zeros between the elements of the gradient. A tap of the kernel that is NaN or
infinite makes NaN of them where PyTorch's own kernel does not read the tap. That kernel then
computes the call.
"""

from __future__ import annotations

from math import isfinite

from torch import Tensor

from bestof.torch.ops.convolution import as_is, onednn
from bestof.torch.ops.convolution.direction import EVERYWHERE, Pass
from bestof.torch.ops.convolution.estimate import direct_input_gradient
from bestof.torch.ops.convolution.pads import Pads, symmetric, symmetric_remainder
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.swapped_operands import Pair, complement, extents, turned_weight
from bestof.torch.ops.dtypes import WIDE
from bestof.torch.ops.memory_format import in_format, placeholder
from bestof.torch.ops.row import Row


def supports(problem: ConvProblem) -> bool:
    """Return whether zeros at most quadruple the work.

    With strides of 4 it took 17 times as long as PyTorch's own kernel.
    """
    return (
        not problem.empty
        and problem.stride[0] * problem.stride[1] <= 4
        and (problem.stride == (1, 1) or not problem.device)  # weights of a GPU are not looked at
        and (
            "channels_last"
            not in (problem.input_layout, problem.weight_layout, problem.grad_layout)
            or onednn.serves(_forward(problem), "forward")
        )
    )


def _forward(problem: ConvProblem) -> ConvProblem:
    """Return the problem of PyTorch's forward pass, whose image is the gradient with zeros."""
    (_, c, r, s), (n, k, p, q) = problem.weight_shape, problem.output_shape
    stride, pads = problem.stride, symmetric(problem.padding)
    sides = _pads((p, q), (r, s), problem.input_shape[2:], pads, stride, problem.dilation)
    padding = max(0, min(sides[0])), max(0, min(sides[1]))
    height, width = (
        step * (size - 1) + 1 + sum(side) - 2 * both
        for step, size, side, both in zip(stride, (p, q), sides, padding, strict=True)
    )
    return problem._replace(
        input_shape=(n, k, height, width),
        weight_shape=(c * problem.groups, k // problem.groups, r, s),
        stride=(1, 1),
        padding=padding,
    )


def _pads(
    outputs: Pair, kernel: Pair, image: Pair, pads: Pads, stride: Pair, dilation: Pair
) -> Pads:
    """Return the pads of the gradient with zeros in it, for an image of this height and width."""
    (top, bottom), (left, right) = complement(pads, kernel, dilation)
    read = extents(outputs, kernel, stride, dilation)
    bottom += image[0] + pads[0][0] + pads[0][1] - read[0]
    right += image[1] + pads[1][0] + pads[1][1] - read[1]
    return (top, bottom), (left, right)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate of PyTorch's forward pass over a gradient with zeros in it.

    Without strides it took 0.7 to 1.4 times as long as PyTorch's input gradient.
    """
    return direct_input_gradient(problem) * problem.stride[0] * problem.stride[1]


def _spread(gradient: Tensor, stride: Pair, channels_last: bool) -> Tensor:
    """Return the gradient with stride - 1 zeros between its elements."""
    if stride == (1, 1):
        return gradient
    n, k, p, q = gradient.shape
    shape = (n, k, stride[0] * (p - 1) + 1, stride[1] * (q - 1) + 1)
    spread = placeholder(gradient, shape, channels_last).zero_()
    spread[:, :, :: stride[0], :: stride[1]] = gradient
    return spread


def gradient(
    originals: PyTorchConv,
    grad_output: Tensor,
    weight: Tensor,
    image: Pair,
    pads: Pads,
    stride: Pair,
    dilation: Pair,
    groups: int,
    channels_last: bool,
) -> Tensor:
    """Return the gradient of the input (N, C, *image), whatever its strides, for one-sided pads."""
    outputs, kernel = grad_output.shape[2:], weight.shape[2:]
    spread, padding = symmetric_remainder(
        _spread(grad_output, stride, channels_last),
        _pads((outputs[0], outputs[1]), (kernel[0], kernel[1]), image, pads, stride, dilation),
    )
    result: Tensor = originals.convolution(
        spread,
        turned_weight(weight, groups),
        None,
        (1, 1),
        padding,
        dilation,
        False,
        (0, 0),
        groups,
    )
    return result


def input_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    # The sum of finite weights may overflow: PyTorch's own kernel then computes what it need not.
    if problem.stride != (1, 1) and not isfinite(float(weight.sum())):
        return as_is.input_gradient(originals, problem, grad_output, weight)
    result = gradient(
        originals,
        grad_output,
        weight,
        problem.input_shape[2:],
        symmetric(problem.padding),
        problem.stride,
        problem.dilation,
        problem.groups,
        problem.channels_last,
    )
    return in_format(result, problem.channels_last)


ROW: Pass = Row(
    "swap: forward",
    input_gradient,
    supports,
    dtypes=WIDE,
    estimate=estimate,
    accuracy="float32",
    devices=EVERYWHERE,
)
