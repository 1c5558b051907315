"""A 1-D convolution as the 2-D one of images of height 1, without copies.

PyTorch's own kernel does the same: it copies an input that is not in channels first, and puts a
dimension of height 1 before the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Spread(NamedTuple):
    """The arguments of a 2-D convolution that view those of a 1-D one."""

    input: Tensor
    weight: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    output_padding: tuple[int, int]


def spread(
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> Spread | None:
    """Return the 2-D arguments of a 1-D convolution; None if it is none."""
    if input.dim() != 3 or weight.dim() != 3 or not len(padding) == len(dilation) == 1:
        return None
    return Spread(
        heightened(input.contiguous()),
        heightened(weight),
        (1, stride[0]),
        (0, padding[0]),
        (1, dilation[0]),
        (0, output_padding[0]),
    )


def heightened(line: Tensor) -> Tensor:
    """Return a view (A, B, 1, L) of a tensor (A, B, L)."""
    return line.unsqueeze(2)


def flattened(image: Tensor | None) -> Tensor | None:
    """Return a view (A, B, L) of a tensor (A, B, 1, L); None for None."""
    return None if image is None else image.squeeze(2)
