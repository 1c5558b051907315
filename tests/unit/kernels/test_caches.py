"""What the kernels believe of the caches."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from bestof.kernels import _native

CACHES = Path("/sys/devices/system/cpu")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors do not tell by CPUID")
def test_the_last_cache_is_that_of_one_group_of_cores() -> None:
    # On AMD, glibc before 2.37 tells the sum over all groups of cores: ten times too much, so that
    # nothing was streamed.
    told = [
        cache
        for cache in CACHES.glob("cpu*/cache/index*")
        if (cache / "level").read_text().strip() == "3"
    ]
    if not told:
        pytest.skip("the system tells of no third level")
    sizes = {(cache / "size").read_text().strip() for cache in told}  # groups need not be alike
    assert all(size.endswith("K") for size in sizes)
    assert _native.level3_bytes() in {int(size[:-1]) << 10 for size in sizes}
