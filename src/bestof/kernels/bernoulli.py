"""Bernoulli numbers, the same ones as PyTorch draws on the CPU."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.pair import integer_of

DTYPES = ("float32", "float64", "bfloat16", "float16")


class BernoulliPlan:
    """`count` numbers that are 1 with a probability, and else 0.

    They come from the Mersenne twister MT19937. Each takes two of its words, as PyTorch's serial
    kernel draws them. So both give the same numbers, and leave the same state.
    Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan",)

    def __init__(self, count: int, probability: float, *, dtype: str = "float32") -> None:
        """dtype: of the numbers, one of `DTYPES`."""
        count = integer_of(count, "count")
        if not 0 <= count < 2**40:
            raise KernelError(f"count: expected 0 to 2^40; got {count}")
        if not 0.0 <= probability <= 1.0:
            raise KernelError(f"probability: expected 0 to 1; got {probability}")
        if dtype not in DTYPES:
            raise KernelError(f"dtype: expected one of {', '.join(DTYPES)}; got {dtype!r}")
        self._plan = _native.bernoulli(count, probability, dtype)

    def run(self, state: int, out: int, after: int) -> None:
        """Write the numbers to `out`, and the state afterwards to `after`, which may be `state`.

        These are addresses. A state has the first 5,016 bytes that `torch.Generator.get_state`
        returns. They are not checked.
        """
        self._plan.run((state,), (out, after))
