"""Squeeze-and-excitation of images in NHWC."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.pair import shape_tuple


class ExcitationPlan:
    """last(x * gate + residual), where means over the image gate each channel.

    gate = logistic(excite @ inner(squeeze @ mean + squeeze_bias) + excite_bias), after Hu et al.,
    2018, "Squeeze-and-excitation networks". x_shape: (N, H, W, C). hidden: the rows of `squeeze`,
    [hidden, C]; `excite` is [C, hidden]. hard: whether the logistic function is clamp(v + 3, 0, 6)
    / 6. inner, last: an activation of the kernels and its slope below zero. All arrays are float32
    and C-contiguous. Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(
        self,
        x_shape: Sequence[int],
        hidden: int,
        *,
        hard: bool = False,
        inner: tuple[str, float] = ("relu", 0.0),
        last: tuple[str, float] = ("", 0.0),
    ) -> None:
        shape = shape_tuple(x_shape, "x_shape")
        if len(shape) != 4:
            raise KernelError(f"x_shape: expected 4 extents (N, H, W, C); got {shape}")
        n, height, width, channels = shape
        self._plan = _native.excitation([n, height * width, channels, hidden], hard, *inner, *last)

    def run(self, operands: Sequence[int], out: int) -> None:
        """Run on addresses, which are not checked, on as many threads as OpenMP uses.

        operands: x, squeeze, squeeze_bias, excite, excite_bias, residual. 0 stands for no bias or
        no residual. out: may be x or the residual.
        """
        try:
            if len(operands) != 6 or not (operands[0] and operands[1] and operands[3] and out):
                raise KernelError(
                    "addresses: expected x, squeeze, squeeze_bias, excite, excite_bias and "
                    f"residual; got {operands!r}"
                )
            self._plan.run(operands, (out,))
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on; got {operands!r} and {out!r}"
            ) from None
