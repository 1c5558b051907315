"""Every test runs once for each instruction set of the processor; scratch is poisoned and
guarded."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
from instruction_set import forced

ALL_ISAS = (
    ("neon",) if platform.machine() in ("aarch64", "arm64") else ("avx512", "avx2", "baseline")
)


@pytest.fixture(autouse=True, params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from forced(request.param)
