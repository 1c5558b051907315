"""Kernels of one instruction set at a time, their scratch checked."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from bestof import kernels
from bestof.kernels import _native

ISAS = ("neon",) if platform.machine() in ("aarch64", "arm64") else ("avx512", "avx2", "baseline")
BFLOAT16_ISAS = ISAS if "neon" in ISAS else ("amx_bf16", "avx512_bf16", *ISAS)
"""With those that multiply bfloat16 in hardware. Their other kernels are those of avx512."""


def forced(isa: str) -> Iterator[str]:
    """For a fixture: force it for a test; skips where this processor or build lacks it."""
    if isa not in kernels.isas():
        pytest.skip(f"this processor or build lacks {isa}")
    kernels.use_isa(isa)
    _native.check_scratch(True)
    yield isa
    _native.check_scratch(False)
    kernels.use_isa(None)
