"""Layer norm of rows in training: with its statistics, and its gradients."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import Runnable
from bestof.kernels.pair import integer_of


class LayerNormPlan:
    """A layer norm of `rows` rows of `size` float32 numbers, checked once, at construction.

    Both methods take addresses, do not check them, and read 0 as "left out". Results must not
    overlap operands. Sums are in float32 over at most 512 numbers, and in float64 over these sums.
    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_backward", "_forward")

    def __init__(self, rows: int, size: int, *, eps: float) -> None:
        rows, size = integer_of(rows, "rows"), integer_of(size, "size")
        if not (0 < rows < 2**40 and 0 < size < 2**31):
            raise KernelError(
                f"rows, size: expected at least 1, and no more than memory holds; "
                f"got {rows} and {size}"
            )
        if not eps >= 0:
            raise KernelError(f"eps: expected a number of at least 0; got {eps!r}")
        self._forward = _native.layer_norm(rows, size, float(eps))
        self._backward = _native.layer_norm_backward(rows, size)

    def run(self, x: int, scale: int, shift: int, out: int, mean: int, rstd: int) -> None:
        """Write the normed rows, and the mean and 1 / deviation of each row.

        The deviation is sqrt(variance + eps). scale, shift: [size].
        """
        self._forward.run((x, scale, shift), (out, mean, rstd))

    def run_backward(
        self,
        gradient: int,
        x: int,
        mean: int,
        rstd: int,
        scale: int,
        of_x: int,
        of_scale: int,
        of_shift: int,
    ) -> None:
        """Write the gradients of x, scale and shift, of which each may be left out.

        Those of scale and shift are summed in float32 by each thread, and in float64 over threads.
        """
        self._backward.run((gradient, x, mean, rstd, scale), (of_x, of_scale, of_shift))

    def runnable(self, *, backward: bool = False) -> Runnable:
        """Return the plan for callers without Python; see native/bindings/runnable.h."""
        return self._backward if backward else self._forward
