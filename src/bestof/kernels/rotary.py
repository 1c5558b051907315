"""Rotary position embedding of the tokens of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import Runnable
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import shape_tuple, threads_of

_OPERANDS = ("x", "cos", "sin")


def rotary(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return x * cos + turned(x) * sin, where turned(x) is (-second half, first half) of a token.

    So element i and its partner, half a token away, turn by an angle (Su et al., 2021, "RoFormer:
    enhanced transformer with rotary position embedding", equation 34, with the pairs of GPT-NeoX
    and Llama).

    x: [batch, heads, tokens, size], float32 or bfloat16, on the CPU; size is even. cos, sin: of the
    type of x, of a shape that broadcasts to that of x, such as [tokens, size]; they have all
    numbers of a token. The numbers of a token lie side by side; other strides are free.
    out: the array to write to, as x, C-contiguous; it must not overlap another argument.
    dtype: of all arrays, as in `matmul`. Results of bfloat16 are computed in float32 and rounded
    once. threads: by default as many as OpenMP uses. Raises KernelError before anything is written.
    """
    check_detached(x=x, cos=cos, sin=sin, out=out)
    dtype = dtype_of(x, dtype)
    if out is None:
        out = empty_like(x, shape_of(x, "x"), dtype)
    given, cosines, sines, result = map(bits_of, (x, cos, sin, out))
    _native.rotary(given, cosines, sines, result, dtype, threads_of(threads))
    return out


class RotaryPlan:
    """A rotary position embedding whose shapes and strides are checked once, at construction.

    `run` takes the addresses of arrays of `dtype` and does not check them. shapes, strides: of x,
    cos and sin, as in `rotary`. Strides count elements. The result is contiguous. Construction
    raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        strides: Sequence[Sequence[int]],
        *,
        dtype: str = "float32",
        threads: int | None = None,
    ) -> None:
        if len(shapes) != len(_OPERANDS) or len(strides) != len(_OPERANDS):
            raise KernelError(
                f"shapes, strides: expected one for each of {', '.join(_OPERANDS)}; "
                f"got {len(shapes)} and {len(strides)}"
            )
        self._plan = _native.rotary_plan(
            [shape_tuple(one, name) for one, name in zip(shapes, _OPERANDS, strict=True)],
            [shape_tuple(one, name) for one, name in zip(strides, _OPERANDS, strict=True)],
            dtype_of(None, dtype),
            threads_of(threads),
        )

    def run(self, x: int, cos: int, sin: int, out: int) -> None:
        """Run the embedding on addresses."""
        try:
            self._plan.run((x, cos, sin), (out,))
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on; got {(x, cos, sin, out)}"
            ) from None

    def runnable(self) -> Runnable:
        """Return the plan for callers without Python; see native/bindings/runnable.h."""
        return self._plan
