"""What all poolings have in common."""

from __future__ import annotations

from typing import Any

from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pooling.image import LEAST_BYTES
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import P, Row

IMAGES = {"8 x 64 x 112 x 112": (8, 64, 112, 112), "8 x 256 x 56 x 56": (8, 256, 56, 56)}
WINDOWS = {"2x2": ((2, 2), (2, 2), (0, 0)), "3x3, step 1": ((3, 3), (1, 1), (1, 1))}
"""The sizes of the images of examples, and the windows: extents, steps and padding."""


class Pooling(Operation[P]):
    """A pooling of images, or its gradient."""

    element = "a gradient"  # what differs if a result does
    switch = "pooling"
    least = LEAST_BYTES // 8  # elements of the widest dtype

    def compare(
        self, _row: Row[P], _original: Kernel, _args: Any, expected: Any, got: Any
    ) -> Finding:
        """Return whether results differ in any bit. One value everywhere tells nothing."""
        same = (got == expected) | (got.isnan() & expected.isnan())
        if not bool(same.all()):
            return Finding(f"{self.element} differs")
        return Finding(tells=bool((expected != expected.flatten()[0]).any()))
