"""Batch norm with fixed statistics, alone or followed by a ReLU."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import threads_of


def frozen_norm(
    x: Array,
    mean: Array,
    variance: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    relu: bool = False,
    channels_last: bool = True,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, or its positive part.

    Each channel is computed as x * scale + shift in float32. Both numbers are taken in float64 and
    rounded once.

    x: C-contiguous, on the CPU. Its channels are the last axis, or with channels_last=False the
    second. mean, variance, weight, bias: float32, one number a channel. None stands for a weight of
    1 and a bias of 0. relu: keeps NaN, as PyTorch does. out: the array to write to; it may be x.
    dtype: "float32" or "bfloat16", of x and out; by default that of x.
    Raises KernelError before anything is written.
    """
    number = _eps_of(eps)
    check_detached(x=x, mean=mean, variance=variance, weight=weight, bias=bias, out=out)
    dtype = dtype_of(x, dtype)
    if out is None:
        out = empty_like(x, shape_of(x, "x"), dtype)
    team = threads_of(threads)
    x, result = bits_of(x), bits_of(out)
    _native.frozen_norm_forward(
        x, mean, variance, weight, bias, result, number, channels_last, relu, dtype, team
    )
    return out


def frozen_norm_backward(
    gradient: Array,
    y: Array | None,
    variance: Array,
    weight: Array | None = None,
    *,
    eps: float = 1e-5,
    channels_last: bool = True,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return the gradient of `frozen_norm` with respect to x. x itself is not needed.

    gradient: with respect to the result y. y: that result if a ReLU followed, else None. The slope
    is 0 where y <= 0. The other arguments are those of `frozen_norm`; out may be gradient or y.
    Raises KernelError before anything is written.
    """
    number = _eps_of(eps)
    check_detached(gradient=gradient, y=y, variance=variance, weight=weight, out=out)
    dtype = dtype_of(gradient, dtype)
    if out is None:
        out = empty_like(gradient, shape_of(gradient, "gradient"), dtype)
    team = threads_of(threads)
    gradient, y, result = map(bits_of, (gradient, y, out))
    _native.frozen_norm_backward(
        gradient, y, variance, weight, result, number, channels_last, dtype, team
    )
    return out


def _eps_of(eps: float) -> float:
    try:
        number = float(eps)
    except (TypeError, ValueError):
        raise KernelError(f"eps: expected a number; got {eps!r}") from None
    if not number >= 0.0:
        raise KernelError(f"eps: expected a number of at least 0; got {eps!r}")
    return number
