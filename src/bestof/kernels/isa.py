"""The instruction set that the kernels use."""

from __future__ import annotations

import os

from bestof.errors import KernelError
from bestof.kernels import _native


def isa() -> str:
    """The instruction set in use: `avx512_bf16`, `avx512`, `avx2`, `baseline` or `neon`; the best that can run here, or
    BESTOF_ISA. The first is the second with products of bfloat16 pairs in one instruction."""
    return _native.isa()


def isas() -> tuple[str, ...]:
    """The instruction sets that this build has and this processor runs, best first."""
    return tuple(_native.isas())


def use_isa(name: str | None) -> None:
    """Uses the kernels of `name` from now on; None: the best. Raises KernelError for one that cannot run here.

    Weights that were packed before serve their own instruction set only.
    """
    if not isinstance(name, str | None):
        raise KernelError(f"name: expected one of {', '.join(isas())}, or None; got {name!r}")
    _native.use_isa(name or "")


use_isa(os.environ.get("BESTOF_ISA"))
