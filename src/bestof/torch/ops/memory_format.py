"""Channels first or channels last, as PyTorch reads them from strides."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["channels_first", "channels_last", "other"]


def _like_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether PyTorch reads these strides of a 4-D or 5-D tensor as channels last.

    The tensor need not be dense. Ambiguous strides (one channel, one pixel) count as channels
    first, unless the strides of the dimensions of size 1 say otherwise. Follows
    `is_channels_last_strides_2d` and `_3d` in c10/core/MemoryFormat.h.
    """
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        stride = strides[axis]
        if shape[axis] == 0 or stride < least or (axis == 0 and least == strides[1]):
            return False
        least = stride * shape[axis]
    return True


def layout_of(tensor: Tensor) -> Layout:
    """Return the class of a 4-D or 5-D tensor's strides.

    It is "channels_last" as PyTorch judges, "channels_first" if dense, or "other" (sliced,
    expanded, permuted), which PyTorch copies to channels first.
    """
    if _like_channels_last(tensor.shape, tensor.stride()):
        return "channels_last"
    return "channels_first" if tensor.is_contiguous() else "other"


def torch_format(channels_last: bool) -> torch.memory_format:
    """Return PyTorch's name of the format."""
    return torch.channels_last if channels_last else torch.contiguous_format


def in_format(result: Tensor, channels_last: bool) -> Tensor:
    """Return the result with the exact strides of a tensor that was allocated in a format.

    It is copied only if it must be. `contiguous` alone keeps the strides of dimensions of size 1,
    from which PyTorch reads the format of an ambiguous tensor.
    """
    result = result.contiguous(memory_format=torch_format(channels_last))
    _, c, h, w = result.shape
    strides = (c * h * w, 1, c * w, c) if channels_last else (c * h * w, h * w, w, 1)
    return result if result.stride() == strides else result.as_strided(result.shape, strides)


def placeholder(like: Tensor, shape: tuple[int, ...], channels_last: bool = False) -> Tensor:
    """Return a tensor whose values are never read, because PyTorch's backward kernel asks for one.

    Its pages are never touched. PyTorch would copy an expanded scalar into a full tensor.
    """
    return torch.empty(
        shape, dtype=like.dtype, device=like.device, memory_format=torch_format(channels_last)
    )
