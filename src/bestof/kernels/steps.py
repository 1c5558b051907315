"""Many kernels, one after the other, on one team of threads."""

from __future__ import annotations

from collections.abc import Callable

from bestof.kernels import _native


def run_steps(functions: list[Callable[[], object]]) -> None:
    """Call functions that run kernels of this package, in order.

    All of them run in one parallel region of OpenMP, so its threads meet once, and wait for the
    next kernel meanwhile: a kernel of 20 us saves up to 2. The results have the same bits. The
    calling thread calls the functions; an exception of one ends the rest, and is raised. A function
    that uses OpenMP by another library, such as PyTorch, gets one thread only. Where the extension
    was not compiled by GCC for Linux, the functions are called without a team.
    """
    _native.run_steps(functions)
