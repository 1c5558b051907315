"""The gradients of attention, without the matrix of all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.attention import added_mask, as_number, as_truth
from bestof.kernels.pair import shape_tuple, threads_of

_ARRAYS = ("gradient", "q", "k", "v", "out", "logsumexp", "mask", "dq", "dk", "dv")
_MASK = _ARRAYS.index("mask")


def attention_backward(
    gradient: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    logsumexp: Array,
    *,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients of q, k and v for the gradient of the result of `attention`.

    gradient, out: [batch, heads, T, size], and logsumexp: [batch, heads, T], as `attention` wrote
    it. The other arguments are those of `attention`, with the numbers of a token side by side. All
    but the logsumexp and the mask are of one dtype, as the results are. Products and sums are of
    float32; AMX multiplies bfloat16, for which it rounds weights and gradients of scores. Heads of
    q that share a head of k and v add to its gradients.

    A query that sees no key has gradients of 0. Memory beside the results grows with T, never with
    S * T. Raises KernelError before anything is computed.
    """
    check_detached(gradient=gradient, q=q, k=k, v=v, out=out, logsumexp=logsumexp, mask=mask)
    shape, dtype = shape_of(q, "q"), dtype_of(q, dtype)
    if scale is None:
        scale = 1 / math.sqrt(max(shape[-1], 1)) if shape else 1.0
    results = (
        empty_like(q, shape, dtype),
        empty_like(k, shape_of(k, "k"), dtype),
        empty_like(v, shape_of(v, "v"), dtype),
    )
    added = added_mask(mask)
    _native.attention_backward(
        [bits_of(x) for x in (gradient, q, k, v, out, logsumexp, added, *results)],
        as_truth(causal),
        as_number(scale),
        dtype,
        dtype_of(added, None),
        threads_of(threads),
    )
    return results


class AttentionBackwardPlan:
    """Gradients of attention whose shapes and strides are checked once, at construction.

    `run` takes the addresses of arrays and does not check them. The mask is of `mask_dtype`, the
    logsumexp of float32, and all others of `dtype`.
    shapes, strides: of the gradient, q, k, v, the result, the logsumexp, the mask and the gradients
    of q, k and v; None for a mask that is left out. Strides count elements. The mask is added.
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
        if len(shapes) != len(_ARRAYS) or len(strides) != len(_ARRAYS):
            raise KernelError(
                f"shapes, strides: expected one for each of {', '.join(_ARRAYS)}; "
                f"got {len(shapes)} and {len(strides)}"
            )
        self._plan = _native.AttentionBackwardPlan(
            [shape_tuple(one or (), name) for one, name in zip(shapes, _ARRAYS, strict=True)],
            [shape_tuple(one or (), name) for one, name in zip(strides, _ARRAYS, strict=True)],
            shapes[_MASK] is not None,
            as_truth(causal),
            as_number(scale),
            dtype_of(None, dtype),
            dtype_of(None, mask_dtype),
            threads_of(threads),
        )

    def run(self, addresses: Sequence[int]) -> None:
        """Write the gradients to addresses; 0 stands for a mask that the plan leaves out."""
        try:
            self._plan.run(addresses)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):
            raise KernelError(
                f"addresses: expected integers from 0 on; got {addresses!r}"
            ) from None
