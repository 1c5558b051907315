"""Channels first or channels last: what PyTorch makes of a tensor's strides, and results in the format it would use."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["channels_first", "channels_last", "other"]


def _like_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether PyTorch takes these strides of a 4-D tensor for channels last (`suggest_memory_format`).

    Dense or not; ambiguous strides (one channel, one pixel) count as channels first, unless the strides of the
    dimensions of size 1 say otherwise. Follows `is_channels_last_strides_2d` in c10/core/MemoryFormat.h.
    """
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        stride = strides[axis]
        if shape[axis] == 0 or stride < least or (axis == 0 and least == strides[1]):
            return False
        least = stride * shape[axis]
    return True


def layout_of(tensor: Tensor) -> Layout:
    """The class of a 4-D tensor's strides: channels_last as PyTorch judges, dense channels_first, or other.

    PyTorch treats other (sliced, expanded, permuted) as channels first, after a copy.
    """
    if _like_channels_last(tensor.shape, tensor.stride()):
        return "channels_last"
    return "channels_first" if tensor.is_contiguous() else "other"


def torch_format(channels_last: bool) -> torch.memory_format:
    """PyTorch's name for it."""
    return torch.channels_last if channels_last else torch.contiguous_format


def in_format(result: Tensor, channels_last: bool) -> Tensor:
    """The result with the exact strides of a tensor that was allocated in that format, copied only where it must be.

    `contiguous` alone leaves the strides of dimensions of size 1 as they are, and PyTorch reads the format of an
    ambiguous tensor from these.
    """
    result = result.contiguous(memory_format=torch_format(channels_last))
    _, c, h, w = result.shape
    strides = (c * h * w, 1, c * w, c) if channels_last else (c * h * w, h * w, w, 1)
    return result if result.stride() == strides else result.as_strided(result.shape, strides)


def placeholder(like: Tensor, shape: tuple[int, ...], channels_last: bool = False) -> Tensor:
    """A tensor of that shape whose values nobody reads: PyTorch's backward asks for one beside those that it uses.

    Not an expanded scalar, which PyTorch would copy into a full tensor first: pages of this one are never touched.
    """
    return torch.empty(
        shape, dtype=like.dtype, device=like.device, memory_format=torch_format(channels_last)
    )
