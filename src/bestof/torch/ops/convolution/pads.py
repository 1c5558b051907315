"""Padding that PyTorch's convolutions do not take: one-sided, or negative (which crops)."""

from __future__ import annotations

import torch
from torch import Tensor

Pads = tuple[tuple[int, int], tuple[int, int]]
"""((top, bottom), (left, right)), in elements; negative numbers crop."""


def symmetric(padding: tuple[int, int]) -> Pads:
    """Return PyTorch's padding as one-sided pads."""
    return (padding[0], padding[0]), (padding[1], padding[1])


def pad(image: Tensor, pads: Pads) -> Tensor:
    """Return the image (..., H, W) with zeros around it, or cropped by negative pads.

    If nothing is added, it is a view.
    """
    (top, bottom), (left, right) = pads
    height, width = image.shape[-2:]
    image = image[
        ..., max(0, -top) : height - max(0, -bottom), max(0, -left) : width - max(0, -right)
    ]
    if max(top, bottom, left, right) > 0:
        around = [max(0, left), max(0, right), max(0, top), max(0, bottom)]
        image = torch.constant_pad_nd(image, around)
    return image


def symmetric_remainder(image: Tensor, pads: Pads) -> tuple[Tensor, tuple[int, int]]:
    """Apply all but the symmetric part of the pads; return the image and that part for PyTorch.

    PyTorch pads inside its kernels without a copy, so only the rest needs one.
    """
    (top, bottom), (left, right) = pads
    vertical, horizontal = max(0, min(top, bottom)), max(0, min(left, right))
    rest = ((top - vertical, bottom - vertical), (left - horizontal, right - horizontal))
    return pad(image, rest), (vertical, horizontal)


def trimmed(image: Tensor, pads: Pads, extents: tuple[int, int]) -> tuple[Tensor, Pads]:
    """Return image and pads without the last rows and columns that a strided convolution skips.

    `extents` are the numbers of padded rows and columns that it reads. The padding behind goes
    first.
    """
    (top, bottom), (left, right) = pads
    height, width = image.shape[-2:]
    bottom, right = extents[0] - height - top, extents[1] - width - left
    image = image[..., : height + min(0, bottom), : width + min(0, right)]
    return image, ((top, max(0, bottom)), (left, max(0, right)))
