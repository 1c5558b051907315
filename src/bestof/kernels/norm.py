"""Layer norm and RMS norm of rows, with the addition before them."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import integer_of, threads_of


def layer_norm(
    x: Array,
    scale: Array | None = None,
    shift: Array | None = None,
    *,
    residual: Array | None = None,
    eps: float = 1e-5,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return (s - mean) / sqrt(variance + eps) * scale + shift for each row of s = x + residual.

    x: float32 or bfloat16 of any shape, C-contiguous, on the CPU; its rows lie along the last axis.
    scale, shift: [row], of the type of x. residual, out: as x. out: the array to write to; it may
    be x or `residual`, and must not overlap any other argument. The variance is the mean square of
    s - mean. Sums of float32 are in float64. Results of bfloat16 are computed in float32 and
    rounded once. dtype: of all arrays, as in `matmul`. threads: by default as many as OpenMP uses.
    Raises KernelError before anything is written.
    """
    return _normed((x, scale, shift, residual, out), eps, True, dtype, threads)


def rms_norm(
    x: Array,
    scale: Array | None = None,
    *,
    residual: Array | None = None,
    eps: float = 1e-6,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return s / sqrt(mean(s^2) + eps) * scale for each row of s = x + residual.

    The arguments are those of `layer_norm`.
    """
    return _normed((x, scale, None, residual, out), eps, False, dtype, threads)


class NormPlan:
    """A norm of rows whose sizes are checked once, at construction.

    `run` takes the addresses of arrays of `dtype` and does not check them. centred: layer norm;
    else RMS norm. Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(
        self, rows: int, size: int, *, eps: float, centred: bool, dtype: str = "float32"
    ) -> None:
        rows, size = integer_of(rows, "rows"), integer_of(size, "size")
        if not (0 <= rows < 2**40 and 1 <= size < 2**31):
            raise KernelError(
                f"rows, size: expected at least 0 and 1, and no more than memory holds; "
                f"got {rows} and {size}"
            )
        self._plan = _native.norm(rows, size, _checked(eps), bool(centred), dtype_of(None, dtype))

    def run(self, x: int, out: int, scale: int = 0, shift: int = 0, residual: int = 0) -> None:
        """Run the norm on addresses; 0 stands for what is left out."""
        try:
            self._plan.run((x, residual, scale, shift), (out,))
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on; got {(x, out, scale, shift, residual)}"
            ) from None


def _normed(
    arrays: tuple[Array, Array | None, Array | None, Array | None, Array | None],
    eps: float,
    centred: bool,
    dtype: str | None,
    threads: int | None,
) -> Array:
    x, scale, shift, residual, out = arrays
    check_detached(x=x, scale=scale, shift=shift, residual=residual, out=out)
    dtype = dtype_of(x, dtype)
    if out is None:
        out = empty_like(x, shape_of(x, "x"), dtype)
    team, epsilon = threads_of(threads), _checked(eps)
    x, residual, scale, shift, result = map(bits_of, (x, residual, scale, shift, out))
    _native.normalize(x, residual, scale, shift, result, epsilon, centred, dtype, team)
    return out


def _checked(eps: object) -> float:
    if not isinstance(eps, (int, float)) or isinstance(eps, bool) or not eps >= 0:
        raise KernelError(f"eps: expected a number of at least 0; got {eps!r}")
    return float(eps)
