"""Transposition of 4-D arrays, by an algorithm of the caller's choice."""

from __future__ import annotations

from collections.abc import Iterable

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, check_detached, empty_like, shape_of
from bestof.kernels.pair import integer

_ALGORITHMS = ("read-contiguous", "write-contiguous", "blocked")


def transpose_algorithms() -> tuple[str, ...]:
    """Return the algorithms of `transpose`.

    Two are loop orders, named by the side that they walk contiguously; one is a vectorised loop
    over blocks.
    """
    return _ALGORITHMS


def transpose(
    x: Array, axes: Iterable[int], *, algorithm: str = "blocked", out: Array | None = None
) -> Array:
    """Return a contiguous copy of `x` with its axes permuted.

    The result is that of `numpy.ascontiguousarray(numpy.transpose(x, axes))`.
    x: float32, 4-D, C-contiguous. axes: a permutation of 0..3. out: the array to write to,
    C-contiguous, of the permuted shape, not overlapping x; by default a new one.
    Raises KernelError before anything is written.
    """
    check_detached(x=x, out=out)
    if algorithm not in _ALGORITHMS:
        raise KernelError(f"algorithm: expected one of {', '.join(_ALGORITHMS)}; got {algorithm!r}")
    shape = shape_of(x, "x")
    if len(shape) != 4:
        raise KernelError(f"x: expected 4 dimensions; got shape {shape}")
    try:
        permutation = tuple(axis for axis in map(integer, axes) if axis is not None)
    except TypeError:
        permutation = ()
    if sorted(permutation) != [0, 1, 2, 3]:
        raise KernelError(f"axes: expected a permutation of 0, 1, 2, 3; got {axes!r}")
    if out is None:
        out = empty_like(x, tuple(shape[axis] for axis in permutation))
    _native.transpose(x, permutation, out, algorithm)
    return out
