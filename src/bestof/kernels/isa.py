"""The instruction set that the kernels use."""

from __future__ import annotations

import os

from bestof.kernels import _native


def isa() -> str:
    """The instruction set in use: `avx512`, `avx2`, `baseline` or `neon`; the best that can run here, or BESTOF_ISA."""
    return _native.isa()


def isas() -> tuple[str, ...]:
    """The instruction sets that this build has and this processor runs, best first."""
    return tuple(_native.isas())


def use_isa(name: str | None) -> None:
    """Uses the kernels of `name` from now on; None: the best. Raises KernelError for one that cannot run here.

    Weights that were packed before serve their own instruction set only.
    """
    _native.use_isa(name or "")


use_isa(os.environ.get("BESTOF_ISA"))
