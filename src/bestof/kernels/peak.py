"""The peak of the processor, in multiply-adds."""

from __future__ import annotations

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.pair import integer_of, threads_of


def multiply_adds(steps: int, *, threads: int | None = None) -> float:
    """Run `steps` rounds of multiply-adds in registers, on each thread; return their FLOPs.

    Divided by the time of the call, this is the peak of the instruction set in use.
    threads: by default as many as OpenMP uses. Raises KernelError for a number below 1.
    """
    if integer_of(steps, "steps") < 1:
        raise KernelError(f"steps: expected a positive integer; got {steps}")
    if threads is not None and integer_of(threads, "threads") < 1:
        raise KernelError(f"threads: expected a positive integer; got {threads}")
    return _native.multiply_adds(steps, threads_of(threads))
