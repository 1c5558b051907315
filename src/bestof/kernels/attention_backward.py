"""The gradients of attention, without the matrix of all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, check_detached, empty_like, shape_of
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
    threads: int | None = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients of q, k and v for the gradient of the result of `attention`.

    gradient, out: [batch, heads, T, size], and logsumexp: [batch, heads, T], as `attention` wrote
    it. The other arguments are those of `attention`. All are float32, with the numbers of a token
    side by side. Heads of q that share a head of k and v add to its gradients.

    A query that sees no key has gradients of 0. Memory beside the results grows with T, never with
    S * T. Raises KernelError before anything is computed.
    """
    check_detached(gradient=gradient, q=q, k=k, v=v, out=out, logsumexp=logsumexp, mask=mask)
    shape = shape_of(q, "q")
    if scale is None:
        scale = 1 / math.sqrt(max(shape[-1], 1)) if shape else 1.0
    results = (
        empty_like(q, shape),
        empty_like(k, shape_of(k, "k")),
        empty_like(v, shape_of(v, "v")),
    )
    _native.attention_backward(
        [gradient, q, k, v, out, logsumexp, added_mask(mask), *results],
        as_truth(causal),
        as_number(scale),
        threads_of(threads),
    )
    return results


class AttentionBackwardPlan:
    """Gradients of attention whose shapes and strides are checked once, at construction.

    `run` takes the addresses of float32 arrays and does not check them.
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
            threads_of(threads),
        )

    def run(self, addresses: Sequence[int]) -> None:
        """Run it on the addresses of its arrays; 0 stands for a mask that the plan leaves out."""
        try:
            self._plan.run(addresses)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):
            raise KernelError(
                f"addresses: expected integers from 0 on; got {addresses!r}"
            ) from None
