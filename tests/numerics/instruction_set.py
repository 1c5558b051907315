"""Kernels of one instruction set at a time, their scratch checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bestof import kernels
from bestof.kernels import _native


def forced(isa: str) -> Iterator[str]:
    """For a fixture: force it for a test; skips where this processor or build lacks it."""
    if isa not in kernels.isas():
        pytest.skip(f"this processor or build lacks {isa}")
    kernels.use_isa(isa)
    _native.check_scratch(True)
    yield isa
    _native.check_scratch(False)
    kernels.use_isa(None)
