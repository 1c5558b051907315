"""Many kernels, one after the other, on one team of threads."""

from __future__ import annotations

from collections.abc import Callable

from bestof.kernels import _native


def run_steps(functions: list[Callable[[], object]], begin: int = 0) -> int:
    """Call functions that run kernels of this package, in order, from that at `begin` on.

    All of them run in one parallel region of OpenMP, so its threads meet once, and wait for the
    next kernel meanwhile: a kernel of 20 us saves up to 2. The results have the same bits, unless
    a kernel is given more threads than OpenMP has. The calling thread calls the functions. An
    exception of one ends the rest, and is raised. So does a function that returns False.

    Returns the place of the function that returned False; `len(functions)` if none did.

    A function that uses OpenMP by another library, such as PyTorch, gets one thread only. No
    function may fork the process. If the extension was not compiled by GCC for Linux on x86-64,
    the functions are called without a team.

    Raises KernelError if `begin` is negative.
    """
    return _native.run_steps(functions, begin)
