"""What all poolings have in common."""

from __future__ import annotations

from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pooling.image import LEAST_BYTES
from bestof.torch.ops.row import P


class Pooling(Operation[P]):
    """A pooling of images, or its gradient."""

    switch = "pooling"
    least = LEAST_BYTES // 8  # elements of the widest dtype
