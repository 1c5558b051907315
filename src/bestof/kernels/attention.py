"""Attention without the matrix of all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import shape_tuple, threads_of

_OPERANDS = ("q", "k", "v", "out", "mask", "logsumexp")


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    out: Array | None = None,
    logsumexp: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return softmax(scale * q @ k.T + mask) @ v for each head.

    q: [batch, heads, T, size]. k, v: [batch, shared heads, S, size]. The number of shared heads
    divides the number of heads, and head h reads shared head h // (heads / shared heads). All are
    on the CPU and of one dtype. The numbers of a token lie side by side; other strides are free.
    mask: float32 or bfloat16, added to the scores, or boolean, true where a query sees a key. It
    broadcasts to [batch, heads, T, S].
    causal: query i sees the keys 0 to i. A mask may be given too.
    scale: by default 1 / sqrt(size).
    out: the array to write to, as q. logsumexp: [batch, heads, T], receives the logarithm of the
    sum of the exponentials of each query's scores. Neither may overlap another argument.
    dtype: of q, k, v and out, float32 or bfloat16; by default that of q. For the bits of bfloat16
    as uint16, pass "bfloat16". Sums are float32. Some processors multiply bfloat16 at once: there
    the weights of more than four queries are rounded to bfloat16.
    threads: by default as many as OpenMP uses, which torch shares.

    If a query sees no key, its result and its logsumexp are 0, as in PyTorch. Memory beside the
    arguments grows with S and T, never with S * T. Raises KernelError before anything is written.
    """
    check_detached(q=q, k=k, v=v, mask=mask, out=out, logsumexp=logsumexp)
    shape, dtype = shape_of(q, "q"), dtype_of(q, dtype)
    if scale is None:
        scale = 1 / math.sqrt(max(shape[-1], 1)) if shape else 1.0
    if out is None:
        out = empty_like(q, shape, dtype)
    queries, keys, values, result = map(bits_of, (q, k, v, out))
    added = added_mask(mask)
    _native.attention(
        queries,
        keys,
        values,
        bits_of(added),
        result,
        logsumexp,
        as_truth(causal),
        as_number(scale),
        dtype,
        dtype_of(added, None),
        threads_of(threads),
    )
    return out


class AttentionPlan:
    """Attention whose shapes and strides are checked once, at construction.

    This is the cheapest call. `run` takes the addresses of arrays and does not check them. q, k,
    v and out are of `dtype`, the mask of `mask_dtype`, the logsumexp of float32.
    shapes, strides: of q, k, v, out, the mask and the logsumexp, as in `attention`; None for a mask
    or a logsumexp that is left out. Strides count elements. The mask is added.
    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(
        self,
        shapes: Sequence[Sequence[int] | None],
        strides: Sequence[Sequence[int] | None],
        *,
        causal: bool = False,
        scale: float,
        dtype: str = "float32",
        mask_dtype: str = "float32",
        threads: int | None = None,
    ) -> None:
        if len(shapes) != len(_OPERANDS) or len(strides) != len(_OPERANDS):
            raise KernelError(
                f"shapes, strides: expected one for each of {', '.join(_OPERANDS)}; "
                f"got {len(shapes)} and {len(strides)}"
            )
        self._plan = _native.AttentionPlan(
            [shape_tuple(one or (), name) for one, name in zip(shapes, _OPERANDS, strict=True)],
            [shape_tuple(one or (), name) for one, name in zip(strides, _OPERANDS, strict=True)],
            shapes[4] is not None,
            shapes[5] is not None,
            as_truth(causal),
            as_number(scale),
            dtype_of(None, dtype),
            dtype_of(None, mask_dtype),
            threads_of(threads),
        )

    def run(self, q: int, k: int, v: int, out: int, mask: int = 0, logsumexp: int = 0) -> None:
        """Run on addresses; 0 stands for a mask or a logsumexp that the plan leaves out."""
        try:
            self._plan.run(q, k, v, mask, out, logsumexp)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):  # arrays have no truth value
            raise KernelError(
                f"addresses: expected integers from 0 on; got {(q, k, v, out, mask, logsumexp)}"
            ) from None


def added_mask(mask: Array | None) -> Array | None:
    """Return what is added to the scores: 0 and -infinity for a boolean mask."""
    if mask is None or str(getattr(mask, "dtype", None)) not in ("bool", "torch.bool"):
        return mask
    seen: NDArray[np.bool_] = np.asarray(mask)
    return np.where(seen, np.float32(0), np.float32(-np.inf))


def as_truth(causal: object) -> bool:
    if not isinstance(causal, (bool, np.bool_)):
        raise KernelError(f"causal: expected true or false; got {causal!r}")
    return bool(causal)


def as_number(scale: object) -> float:
    try:
        return float(scale)  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError, OverflowError):
        raise KernelError(f"scale: expected a number; got {scale!r}") from None
