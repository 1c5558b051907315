"""The multiply-adds that nothing holds up."""

from __future__ import annotations

import pytest

from bestof import kernels
from bestof.errors import KernelError


@pytest.mark.parametrize("isa", kernels.isas())
def test_flops_are_counted(isa: str) -> None:
    kernels.use_isa(isa)
    try:
        alone = kernels.multiply_adds(100, threads=1)
        assert alone > 0
        assert kernels.multiply_adds(300, threads=1) == 3 * alone
        assert kernels.multiply_adds(100, threads=2) == 2 * alone
    finally:
        kernels.use_isa(None)


@pytest.mark.parametrize(("steps", "threads"), [(0, 1), (-1, None), (1, 0)])
def test_numbers_that_cannot_be_used(steps: int, threads: int | None) -> None:
    with pytest.raises(KernelError, match="expected a positive integer"):
        kernels.multiply_adds(steps, threads=threads)
