"""2-D pooling in NHWC, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import Pair, pair_of, pitch_of, shape_tuple, threads_of

_KINDS = ("max", "average")


def pool2d(
    x: Array,
    kernel: Pair,
    *,
    kind: str = "max",
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil: bool = False,
    count_padding: bool = True,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return the maximum or average of every window of x, [N, H, W, C], C-contiguous.

    dtype: of x and y, float32 or bfloat16 (as in `conv2d`); by default that of x. Averages of
    bfloat16 are summed in float32, and rounded once.

    kind: max or average. stride: by default the kernel. padding: at most half of the kernel. A pad
    is never a maximum, and counts as 0 in an average. ceil: whether a last window of a maximum may
    reach beyond the padding, if it begins before the end of the image (PyTorch's ceil_mode).
    count_padding: whether an average is divided by the whole kernel (PyTorch's count_include_pad)
    or by the elements inside the image.
    Raises KernelError before anything is written.
    """
    numbers = _numbers(kernel, stride, padding, ceil, kind, count_padding)
    check_detached(x=x, out=out)
    dtype = dtype_of(x, dtype)
    shape = shape_of(x, "x")
    if len(shape) != 4:
        raise KernelError(f"x: expected 4 dimensions (N, H, W, C); got shape {shape}")
    if out is None:
        plan = _native.PoolPlan(shape, numbers, kind == "max", count_padding, dtype, 0)
        out = empty_like(x, plan.y_shape, dtype)
    _native.pool(
        *(bits_of(x), bits_of(out), numbers, kind == "max"),
        *(count_padding, dtype, threads_of(threads)),
    )
    return out


class Pool2dPlan:
    """A pooling whose problem is checked once, at construction. It runs on addresses.

    This is the cheapest call. `run` takes the addresses of x and y, arrays of `dtype` in the layout
    of this module, and does not check them. The arguments are those of `pool2d`, and the pitch of
    `Conv2dPlan`. Construction raises KernelError for a problem that cannot be computed.
    """

    __slots__ = ("_plan", "x_shape", "y_shape")

    def __init__(
        self,
        x_shape: Sequence[int],
        kernel: Pair,
        *,
        kind: str = "max",
        stride: Pair | None = None,
        padding: Pair = 0,
        ceil: bool = False,
        count_padding: bool = True,
        dtype: str = "float32",
        pitch: int | None = None,
    ) -> None:
        numbers = _numbers(kernel, stride, padding, ceil, kind, count_padding)
        self.x_shape = shape_tuple(x_shape, "x_shape")
        if len(self.x_shape) != 4 or min(self.x_shape[1:]) < 1 or self.x_shape[0] < 0:
            raise KernelError(
                f"x_shape: expected 4 extents (N, H, W, C) of at least 1 (N: 0); got {self.x_shape}"
            )
        self._plan = _native.PoolPlan(
            *(self.x_shape, numbers, kind == "max", count_padding, dtype_of(None, dtype)),
            pitch_of(pitch),
        )
        self.y_shape = self._plan.y_shape

    def run(self, x: int, y: int) -> None:
        """Pool the array at address x into the one at y, on as many threads as OpenMP uses."""
        try:
            if not (x and y) and all(self.x_shape):  # empty arrays have no address
                raise KernelError(f"addresses: expected two that are not 0; got {x!r}, {y!r}")
            self._plan.run(x, y)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):  # arrays have no truth value
            raise KernelError(f"addresses: expected integers from 0 on; got {x!r}, {y!r}") from None


def pool2d_backward(
    grad: Array,
    x_shape: Sequence[int],
    kernel: Pair,
    *,
    x: Array | None = None,
    kind: str = "max",
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil: bool = False,
    count_padding: bool = True,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Return the gradient of x, of `x_shape`, from `grad`, the gradient of the pooled array.

    x: the pooled array, which max needs. Of equal largest elements the first one gets the gradient,
    and the last NaN, as in PyTorch. The other arguments are those of `pool2d`.
    """
    numbers = _numbers(kernel, stride, padding, ceil, kind, count_padding)
    check_detached(grad=grad, x=x, out=out)
    if kind == "max" and x is None:
        raise KernelError(
            "x: expected the array that was pooled, which the gradient of a maximum needs; got None"
        )
    if out is None:
        out = empty_like(grad, shape_tuple(x_shape, "x_shape"))
    _native.pool_backward(grad, x, out, numbers, kind == "max", count_padding, threads_of(threads))
    return out


def _numbers(
    kernel: Pair, stride: Pair | None, padding: Pair, ceil: bool, kind: str, count_padding: bool
) -> list[int]:
    if kind not in _KINDS:
        raise KernelError(f"kind: expected max or average; got {kind!r}")
    if not isinstance(count_padding, bool):
        raise KernelError(f"count_padding: expected True or False; got {count_padding!r}")
    if not isinstance(ceil, bool) or (ceil and kind != "max"):
        raise KernelError(f"ceil: expected True or False, and False for averages; got {ceil!r}")
    size = pair_of(kernel, "kernel")
    return [
        *size,
        *(size if stride is None else pair_of(stride, "stride")),
        *pair_of(padding, "padding"),
        ceil,
    ]
