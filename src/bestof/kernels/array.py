"""Arrays of callers: anything with a shape and DLPack, and results of the same kind."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from bestof.errors import KernelError

Array: TypeAlias = Any  # a NumPy array, or anything with `shape` and `__dlpack__`, such as a torch tensor


def shape_of(value: Array, name: str) -> tuple[int, ...]:
    """The extents of an array; KernelError naming the argument `name` for what is none."""
    try:
        return tuple(map(int, value.shape))
    except (AttributeError, TypeError, ValueError):
        raise KernelError(f"{name}: expected an array; got {type(value).__name__}") from None


def empty_like(value: Array, shape: tuple[int, ...]) -> Array:
    """A new float32 array of `shape`: a torch tensor where `value` is one, else a NumPy array."""
    new_empty = getattr(value, "new_empty", None)  # torch's; so it need not be imported here
    if new_empty is not None:
        return new_empty(shape)
    return np.empty(shape, np.float32)
