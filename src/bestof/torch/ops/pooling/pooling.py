"""What all poolings have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pooling.image import LEAST_BYTES
from bestof.torch.ops.row import P

IMAGES = {"8 x 64 x 112 x 112": (8, 64, 112, 112), "8 x 256 x 56 x 56": (8, 256, 56, 56)}
WINDOWS = {"2x2": ((2, 2), (2, 2), (0, 0)), "3x3, step 1": ((3, 3), (1, 1), (1, 1))}
"""The sizes of the images of examples, and the windows: extents, steps and padding."""


def image(shape: tuple[int, ...]) -> Tensor:
    """Return the same random numbers at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Pooling(Operation[P]):
    """A pooling of images, or its gradient."""

    switch = "pooling"
    least = LEAST_BYTES // 8  # elements of the widest dtype
