"""The pooling windows that native kernels compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from bestof.errors import TorchError
from bestof.kernels import Pool2dPlan
from bestof.torch.plan.layers.pixels import pitch_of
from bestof.torch.plan.trace.graph import Pair


@dataclass(frozen=True, slots=True)
class Window:
    """The maximum or average of every window of (N, C, H, W).

    ceil: whether a last window of a maximum may reach beyond the padding.
    """

    kind: str
    kernel: Pair
    stride: Pair
    padding: Pair
    count_padding: bool
    ceil: bool = False

    def __str__(self) -> str:
        return f"{self.kind} pooling {self.kernel[0]}x{self.kernel[1]}"

    @property
    def is_max_2x2(self) -> bool:
        """Whether the pooling takes the largest of each 2x2 values, as some convolutions do."""
        return self == MAX_2X2


MAX_2X2 = Window("max", (2, 2), (2, 2), (0, 0), count_padding=True)


def pooling_runner(pool: Window, x: Tensor, out: Tensor) -> Callable[[], object]:
    """Return a function that pools x into `out`, both in channels last.

    `out` may be a part of the channels of wider pixels.

    The kernel is given addresses: 20 us a call where the code has left the caches; 60 by arrays.
    TorchError if `out` has another shape or type: the kernel does not know the size of `out`.
    """
    (n, c, h, w), pitch = x.shape, pitch_of(out)
    plan = Pool2dPlan(
        (n, h, w, c),
        pool.kernel,
        kind=pool.kind,
        stride=pool.stride,
        padding=pool.padding,
        ceil=pool.ceil,
        count_padding=pool.count_padding,
        dtype=str(x.dtype).removeprefix("torch."),
        pitch=pitch or None,
    )
    given, into = x.permute(0, 2, 3, 1), out.permute(0, 2, 3, 1).shape
    alike = given.is_contiguous() and pitch is not None
    if into != plan.y_shape or x.dtype is not out.dtype or not alike:
        raise TorchError(
            f"optimize: a {pool} of {tuple(x.shape)} yields (N, H, W, C) {tuple(plan.y_shape)} of "
            f"{x.dtype}; the plan keeps {tuple(into)} of {out.dtype} for it: make the plan anew"
        )
    return partial(plan.run, x.data_ptr(), out.data_ptr())
