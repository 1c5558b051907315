"""Exchanges axes, so that one convolution computes another one."""

from __future__ import annotations

from torch import Tensor

from bestof.torch.ops.convolution.pads import Pads

Pair = tuple[int, int]


def batch_as_channels(image: Tensor, groups: int) -> Tensor:
    """Return (N, C, H, W) as (C/g, g N, H, W): channels and batch exchanged, group by group."""
    n, c, h, w = image.shape
    return (
        image.reshape(n, groups, c // groups, h, w)
        .permute(2, 1, 0, 3, 4)
        .reshape(c // groups, groups * n, h, w)
    )


def turned_weight(weight: Tensor, groups: int) -> Tensor:
    """Return (K, C/g, R, S) as (C, K/g, R, S).

    In each group, filters and channels are exchanged, and the kernel is rotated by 180 degrees.
    """
    k, c, r, s = weight.shape
    swapped = weight.reshape(groups, k // groups, c, r, s).transpose(1, 2)
    return swapped.reshape(groups * c, k // groups, r, s).flip(2, 3)


def extents(outputs: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """Return how many padded rows and columns a convolution reads for so many outputs."""
    return (
        stride[0] * (outputs[0] - 1) + dilation[0] * (kernel[0] - 1) + 1,
        stride[1] * (outputs[1] - 1) + dilation[1] * (kernel[1] - 1) + 1,
    )


def output_size(image: Pair, kernel: Pair, pads: Pads, stride: Pair, dilation: Pair) -> Pair:
    """Return height and width of the output of a convolution with one-sided pads."""
    (top, bottom), (left, right) = pads
    return (
        (image[0] + top + bottom - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1,
        (image[1] + left + right - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1,
    )


def complement(pads: Pads, kernel: Pair, dilation: Pair) -> Pads:
    """Return the pads that undo the shape of a convolution of stride 1: dilation (R - 1) - pad."""
    (top, bottom), (left, right) = pads
    rows, columns = dilation[0] * (kernel[0] - 1), dilation[1] * (kernel[1] - 1)
    return (rows - top, rows - bottom), (columns - left, columns - right)
