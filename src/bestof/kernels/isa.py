"""The instruction set that the kernels use."""

from __future__ import annotations

import os

from bestof.errors import KernelError
from bestof.kernels import _native


def isa() -> str:
    """Return the instruction set in use: amx_bf16, avx512_bf16, avx512, avx2, baseline or neon.

    This is the best one that the processor runs, or the one that BESTOF_ISA names. `avx512_bf16` is
    `avx512` with an instruction that multiplies pairs of bfloat16. `amx_bf16` multiplies whole
    tiles of bfloat16 as well.
    """
    return _native.isa()


def has_wide_vectors() -> bool:
    """Return whether vectors have 32 bytes or more: AVX2, AVX-512 and what extends it."""
    return isa() not in ("baseline", "neon")


def isas() -> tuple[str, ...]:
    """Return the instruction sets that this build has and this processor runs, best first."""
    return tuple(_native.isas())


def use_isa(name: str | None) -> None:
    """Use the kernels of the instruction set `name` from now on, or the best ones for None.

    Weights that were packed before serve only the instruction set that they were packed for.
    Raises KernelError if the processor or the build lacks the instruction set.
    """
    if not isinstance(name, str | None):
        raise KernelError(f"name: expected one of {', '.join(isas())}, or None; got {name!r}")
    _native.use_isa(name or "")


use_isa(os.environ.get("BESTOF_ISA"))
