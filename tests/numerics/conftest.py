"""Every test here runs once for each instruction set that this processor has, with scratch poisoned and guarded."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from bestof import kernels
from bestof.kernels import _native

ALL_ISAS = ("neon",) if platform.machine() in ("aarch64", "arm64") else ("avx512", "avx2", "baseline")


@pytest.fixture(autouse=True, params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in kernels.isas():
        pytest.skip(f"this processor or build lacks {request.param}")
    kernels.use_isa(request.param)
    _native.check_scratch(True)
    yield request.param
    _native.check_scratch(False)
    kernels.use_isa(None)
