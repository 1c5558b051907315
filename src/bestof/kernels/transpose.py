"""Transposition of 4-D arrays, by an algorithm of the caller's choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import _native

_ALGORITHMS = ("read-contiguous", "write-contiguous")


def transpose_algorithms() -> tuple[str, ...]:
    """The names that `transpose` takes: loop orders, by the side that they walk contiguously."""
    return _ALGORITHMS


def transpose(
    x: NDArray[np.float32],
    axes: Sequence[int],
    *,
    algorithm: str = "write-contiguous",
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """A contiguous copy of `x` with its axes permuted, as `numpy.ascontiguousarray(numpy.transpose(x, axes))`.

    x: float32, 4-D, C-contiguous. axes: a permutation of 0..3. out: where to write, C-contiguous, of the permuted
    shape, not overlapping x; a new array by default. Raises KernelError, before anything is written, for anything else.
    """
    if algorithm not in _ALGORITHMS:
        raise KernelError(f"algorithm: expected one of {', '.join(_ALGORITHMS)}; got {algorithm!r}")
    if not isinstance(x, np.ndarray) or x.ndim != 4 or x.dtype != np.float32 or not x.flags.c_contiguous:
        raise KernelError(f"x: expected a C-contiguous 4-D float32 array; got {_describe(x)}")
    permutation = tuple(axes)
    if sorted(permutation) != [0, 1, 2, 3]:
        raise KernelError(f"axes: expected a permutation of 0, 1, 2, 3; got {permutation}")
    shape = tuple(x.shape[axis] for axis in permutation)
    if out is None:
        out = np.empty(shape, np.float32)
    elif not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.float32:
        raise KernelError(f"out: expected a float32 array of shape {shape}; got {_describe(out)}")
    elif not out.flags.c_contiguous or not out.flags.writeable:
        raise KernelError("out: expected a writeable C-contiguous array; got one that is not")
    elif np.may_share_memory(x, out):
        raise KernelError("out: must not overlap x")
    _native.transpose(x, permutation, out, algorithm)
    return out


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        order = "C-contiguous" if value.flags.c_contiguous else "not C-contiguous"
        return f"{value.dtype} of shape {value.shape}, {order}"
    return type(value).__name__
