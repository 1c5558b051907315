"""Arrays of callers: anything with a shape and DLPack, and results of the same kind."""

from __future__ import annotations

import sys
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


def check_detached(**arrays: Array | None) -> None:
    """Raises KernelError for a tensor, by the name of its argument, whose gradient would be lost: kernels record
    nothing."""
    for name, value in arrays.items():
        if getattr(value, "requires_grad", False) is True and sys.modules["torch"].is_grad_enabled():
            raise KernelError(
                f"{name}: expected an array without a gradient; got a tensor that requires one, which would be lost: "
                f"detach it, or call inside torch.no_grad()"
            )


def empty_like(value: Array, shape: tuple[int, ...]) -> Array:
    """A new float32 array of `shape`: a torch tensor where `value` is one, else a NumPy array."""
    new_empty = getattr(value, "new_empty", None)  # torch's; so it need not be imported here
    if new_empty is not None:
        return new_empty(shape)
    return np.empty(shape, np.float32)
