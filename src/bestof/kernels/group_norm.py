"""The gradients of group norm in channels last."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import Runnable
from bestof.kernels.pair import integer_of


class GroupNormPlan:
    """A group norm of float32 arrays [images, pixels, channels], checked once, at construction.

    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(self, images: int, pixels: int, channels: int, groups: int) -> None:
        numbers = (
            integer_of(images, "images"),
            integer_of(pixels, "pixels"),
            integer_of(channels, "channels"),
            integer_of(groups, "groups"),
        )
        if not all(0 < one < 2**31 for one in numbers) or numbers[2] % numbers[3]:
            raise KernelError(
                "images, pixels, channels, groups: expected 1 to 2^31, and groups of as many "
                f"channels; got {numbers}"
            )
        self._plan = _native.group_norm_backward(*numbers)

    def run_backward(
        self,
        gradient: int,
        x: int,
        mean: int,
        rstd: int,
        scale: int,
        of_x: int,
        of_scale: int,
        of_shift: int,
    ) -> None:
        """Write the gradients of x, scale and shift; 0 stands for what is left out.

        mean, rstd: [images, groups], the statistics of the forward pass. Addresses are not checked.
        Results must not overlap operands. Sums are in float32 over at most 128 pixels, and in
        float64 over these sums.
        """
        self._plan.run((gradient, x, mean, rstd, scale), (of_x, of_scale, of_shift))

    def runnable(self) -> Runnable:
        """Return the plan of the gradients for callers without Python; see runnable.h."""
        return self._plan
