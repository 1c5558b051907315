"""Arrays of callers: anything with a shape and DLPack. Results are of the same kind."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

from bestof.errors import KernelError

Array: TypeAlias = (
    Any  # a NumPy array, or anything with `shape` and `__dlpack__`, such as a torch tensor
)


def shape_of(value: Array, name: str) -> tuple[int, ...]:
    """Return the extents of an array. Raises KernelError, which names the argument."""
    try:
        return tuple(map(int, value.shape))
    except (AttributeError, TypeError, ValueError):
        raise KernelError(f"{name}: expected an array; got {type(value).__name__}") from None


def dtype_of(value: Array, dtype: str | None) -> str:
    """Return `dtype`. If it is None, return bfloat16 for a bfloat16 array, else float32.

    The kernels check that the array has this type.
    """
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
    """Return a uint16 view of a NumPy array of ml_dtypes' bfloat16. Return other values
    unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return value.view(np.uint16)
    return value


def check_detached(**arrays: Array | None) -> None:
    """Raise KernelError for a tensor that kernels would take for another one.

    They record no gradient, and read memory as it is, without a negative bit.
    """
    for name, value in arrays.items():
        if (
            getattr(value, "requires_grad", False) is True
            and sys.modules["torch"].is_grad_enabled()
        ):
            raise KernelError(
                f"{name}: expected an array without a gradient; got a tensor that requires one, "
                f"which would be lost: detach it, or call inside torch.no_grad()"
            )
        is_negative = getattr(value, "is_neg", None)  # DLPack shows the memory as it is
        if is_negative is not None and is_negative():
            raise KernelError(
                f"{name}: expected a tensor without the negative bit; got a view that stands for "
                "the negative of its memory: call resolve_neg()"
            )


def empty_like(value: Array, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Return a new array of `shape`: a tensor if `value` is one, else a NumPy array.

    A NumPy array for bfloat16 has the type of `value`.
    """
    new_empty = getattr(value, "new_empty", None)  # torch's; so it need not be imported here
    if new_empty is not None:
        return new_empty(shape)
    return np.empty(shape, np.float32 if dtype == "float32" else value.dtype)
