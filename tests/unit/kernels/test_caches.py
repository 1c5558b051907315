"""What the kernels believe of the caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.kernels import _native

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def test_the_last_cache_is_that_of_one_group_of_cores() -> None:
    # On AMD, glibc before 2.37 tells the sum over all groups instead, ten times as much, and nothing was streamed.
    told = [cache for cache in CACHES.glob("index*") if (cache / "level").read_text().strip() == "3"]
    if not told:
        pytest.skip("the system tells of no third level")
    size = (told[0] / "size").read_text().strip()
    assert size.endswith("K")
    assert _native.level3_bytes() == int(size[:-1]) << 10
