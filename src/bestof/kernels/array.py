"""Arrays of callers: anything with a shape and DLPack, and results of the same kind."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

from bestof.errors import KernelError

Array: TypeAlias = (
    Any  # a NumPy array, or anything with `shape` and `__dlpack__`, such as a torch tensor
)


def shape_of(value: Array, name: str) -> tuple[int, ...]:
    """The extents of an array; KernelError naming the argument `name` for what is none."""
    try:
        return tuple(map(int, value.shape))
    except (AttributeError, TypeError, ValueError):
        raise KernelError(f"{name}: expected an array; got {type(value).__name__}") from None


def dtype_of(value: Array, dtype: str | None) -> str:
    """The name `dtype`, or, where that is None, bfloat16 for an array of it and else float32, which kernels check."""
    if dtype is None:
        return (
            "bfloat16"
            if str(getattr(value, "dtype", None)) in ("bfloat16", "torch.bfloat16")
            else "float32"
        )
    if dtype not in ("float32", "bfloat16"):
        raise KernelError(f"dtype: expected 'float32' or 'bfloat16'; got {dtype!r}")
    return dtype


def bits_of(value: Array) -> Array:
    """A NumPy array of ml_dtypes' bfloat16, which kernels could not read, as uint16 in place; else `value`."""
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return value.view(np.uint16)
    return value


def check_detached(**arrays: Array | None) -> None:
    """Raises KernelError for a tensor, by the name of its argument, whose gradient would be lost: kernels record
    nothing."""
    for name, value in arrays.items():
        if (
            getattr(value, "requires_grad", False) is True
            and sys.modules["torch"].is_grad_enabled()
        ):
            raise KernelError(
                f"{name}: expected an array without a gradient; got a tensor that requires one, which would be lost: "
                f"detach it, or call inside torch.no_grad()"
            )


def empty_like(value: Array, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """A new array of `shape`: a torch tensor of the type of `value` where that is one, else a NumPy array, which holds
    bfloat16 as `value` does."""
    new_empty = getattr(value, "new_empty", None)  # torch's; so it need not be imported here
    if new_empty is not None:
        return new_empty(shape)
    return np.empty(shape, np.float32 if dtype == "float32" else value.dtype)
