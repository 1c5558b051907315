"""Volumes as planes for 2-D convolutions: the taps along the depth become channels.

A plane of the result reads T planes of the volume, those of the taps. One plane with the channels
of all of them makes a 2-D convolution of that pass: im2row along one axis. The copy has T times the
elements of the volume; the 2-D convolution, such as Winograd, does the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.ops.convolution.volume_problem import VolumeProblem


def input_planes(volume: Tensor, problem: VolumeProblem) -> Tensor:
    """Return (N planes, g T C/g, H, W) of an input (N, C, D, H, W), in channels last."""
    pad, last = problem.padding[0], problem.input_shape[2]
    read = _read(problem)
    return _lowered(
        *(volume, problem.groups, problem.weight_shape[2], problem.stride[0]),
        problem.dilation[0],
        (pad, read - last - pad),
        problem.output_shape[2],
    )


def gradient_planes(gradient: Tensor, problem: VolumeProblem) -> Tensor:
    """Return (N D, g T K/g, P, Q) of a gradient (N, K, D', P, Q), in channels last.

    A plane of the input is read by the planes of the output before it, the last tap by the first
    of them. The stride along the depth is 1.
    """
    pad = problem.dilation[0] * (problem.weight_shape[2] - 1) - problem.padding[0]
    return _lowered(
        *(gradient, problem.groups, problem.weight_shape[2], 1),
        problem.dilation[0],
        (pad, pad),
        problem.input_shape[2],
    )


def single_planes(gradient: Tensor) -> Tensor:
    """Return (N D', K, P, Q) of a gradient (N, K, D', P, Q), in channels last."""
    n, k, d, p, q = gradient.shape
    return gradient.permute(0, 2, 3, 4, 1).reshape(n * d, p, q, k).permute(0, 3, 1, 2)


def volume_of(planes: Tensor, batch: int) -> Tensor:
    """Return a dense volume (N, C, D, H, W) in channels first of planes (N D, C, H, W)."""
    _, c, h, w = planes.shape
    return _dense(planes.reshape(batch, -1, c, h, w).transpose(1, 2))


def forward_weight(weight: Tensor) -> Tensor:
    """Return the weight (K, T C/g, R, S) of the planes of `input_planes`."""
    return weight.transpose(1, 2).flatten(1, 2)


def weight_of(planes: Tensor, problem: VolumeProblem) -> Tensor:
    """Return (K, C/g, T, R, S), from a weight of planes (K, T C/g, R, S)."""
    k, c, r, s = planes.shape
    taps = problem.weight_shape[2]
    return _dense(planes.reshape(k, taps, c // taps, r, s).transpose(1, 2))


def gradient_weight(weight: Tensor, problem: VolumeProblem) -> Tensor:
    """Return the weight (g T K/g, C/g, R, S) of the planes of `gradient_planes`."""
    k, c, taps, r, s = problem.weight_shape
    g = problem.groups
    turned = weight.flip(2).reshape(g, k // g, c, taps, r, s).permute(0, 3, 1, 2, 4, 5)
    return turned.reshape(taps * k, c, r, s)


def _dense(volume: Tensor) -> Tensor:
    """Return the elements with the strides of channels first, also along dimensions of size 1."""
    return volume.contiguous().view(-1).view(volume.shape)


def _read(problem: VolumeProblem) -> int:
    """Return how many planes of a padded volume a convolution reads."""
    return problem.stride[0] * (problem.output_shape[2] - 1) + (
        problem.dilation[0] * (problem.weight_shape[2] - 1) + 1
    )


def _lowered(
    volume: Tensor,
    groups: int,
    taps: int,
    step: int,
    dilation: int,
    pads: tuple[int, int],
    planes: int,
) -> Tensor:
    """Return planes that hold the channels of `taps` planes each; negative pads crop."""
    n, c, d, h, w = volume.shape
    before, after = pads
    volume = volume[:, :, max(0, -before) : d - max(0, -after)].permute(0, 2, 3, 4, 1)
    before, after = max(0, before), max(0, after)
    inside = volume.shape[1]
    rows = torch.empty((n, before + inside + after, h, w, c), dtype=volume.dtype, device="cpu")
    rows[:, before : before + inside] = volume
    rows[:, :before] = 0
    rows[:, before + inside :] = 0
    of_batch, of_plane, of_row, of_pixel, of_channel = rows.stride()
    windows = rows.as_strided(
        (n, planes, h, w, groups, taps, c // groups),
        (
            of_batch,
            step * of_plane,
            of_row,
            of_pixel,
            c // groups * of_channel,
            dilation * of_plane,
            of_channel,
        ),
    )
    return windows.reshape(n * planes, h, w, taps * c).permute(0, 3, 1, 2)
