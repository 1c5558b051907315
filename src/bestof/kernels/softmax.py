"""Softmax along any axis of an array."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import Runnable
from bestof.kernels.pair import integer_of


class SoftmaxPlan:
    """exp(x - highest) / sum of these, of an array [outer, size, inner] along `size`.

    `run` takes the addresses of float32 arrays and does not check them. A row that contains NaN or
    +infinity, or nothing but -infinity, gives NaN.
    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(self, outer: int, size: int, inner: int = 1) -> None:
        numbers = (
            integer_of(outer, "outer"),
            integer_of(size, "size"),
            integer_of(inner, "inner"),
        )
        if not all(0 < one < 2**40 for one in numbers):
            raise KernelError(f"outer, size, inner: expected 1 to 2^40; got {numbers}")
        self._plan = _native.softmax(*numbers)

    def run(self, x: int, out: int) -> None:
        """Write the softmax of x to `out`, which may be x."""
        self._plan.run((x,), (out,))

    def runnable(self) -> Runnable:
        """Return the plan for callers without Python; see native/bindings/runnable.h."""
        return self._plan
