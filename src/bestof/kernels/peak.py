"""How many multiply-adds the processor does at most."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.pair import integer_of, threads_of


def multiply_adds(steps: int, *, threads: int | None = None) -> float:
    """Runs `steps` rounds of multiply-adds that stay in registers, on each thread, and returns how many FLOPs they are.

    Over the time that it takes, that is the peak of the instruction set in use. threads: by default as many as OpenMP
    uses. Raises KernelError for a number that is not positive.
    """
    if integer_of(steps, "steps") < 1:
        raise KernelError(f"steps: expected a positive integer; got {steps}")
    if threads is not None and integer_of(threads, "threads") < 1:
        raise KernelError(f"threads: expected a positive integer; got {threads}")
    return _native.multiply_adds(steps, threads_of(threads))
