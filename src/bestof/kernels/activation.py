"""GELU and SiLU of whole arrays, and their gradients."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import Runnable
from bestof.kernels.array import dtype_of
from bestof.kernels.pair import integer_of

ACTIVATIONS = ("gelu", "gelu_tanh", "silu")


class ActivationPlan:
    """An activation of `count` numbers, checked once, at construction.

    activation: one of `ACTIVATIONS`. `run` and `run_backward` take the addresses of arrays of
    `dtype`, and do not check them. Bfloat16 is computed in float32 and rounded once. NaN and
    infinities lie where the formulas have them: the activation of -infinity is NaN.

    Errors of float32, in units of 2^-24: `gelu` 4, `gelu_tanh` 5 and `silu` 5 times the argument;
    the gradients 7, 14 and 11 times the gradient that is given.
    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_backward", "_forward")

    def __init__(self, count: int, activation: str, *, dtype: str = "float32") -> None:
        count = integer_of(count, "count")
        if not 0 <= count < 2**40:
            raise KernelError(f"count: expected 0 to 2^40; got {count}")
        if activation not in ACTIVATIONS:
            raise KernelError(
                f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}"
            )
        numbers = count, activation, dtype_of(None, dtype)
        self._forward = _native.activation(*numbers)
        self._backward = _native.activation_backward(*numbers)

    def run(self, x: int, out: int) -> None:
        """Write the activation of x to `out`, which may be x."""
        self._forward.run((x,), (out,))

    def run_backward(self, gradient: int, x: int, out: int) -> None:
        """Write gradient * (the derivative at x) to `out`, which may be either."""
        self._backward.run((gradient, x), (out,))

    def runnable(self, *, backward: bool = False) -> Runnable:
        """Return the plan for callers without Python; see native/bindings/runnable.h."""
        return self._backward if backward else self._forward
