"""Results are complete and right for any number of threads, whichever takes which part."""

from __future__ import annotations

import pytest

from bestof import kernels

np = pytest.importorskip("numpy")


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 70])
@pytest.mark.parametrize(
    "algorithm", ["direct", "im2row", "convgemm", "winograd2", "winograd4", "winograd6"]
)
def test_any_number_of_threads(algorithm: str, threads: int) -> None:
    random = np.random.default_rng(0)
    for shape in ((2, 30, 30, 20), (1, 7, 7, 20)):  # blocks that are fused, and few tiles in phases
        x = random.standard_normal(shape, dtype=np.float32)
        w = random.standard_normal((24, 3, 3, 20), dtype=np.float32)
        expected = kernels.conv2d(x, w, padding=1, algorithm="direct", threads=1)
        for _ in range(5):  # who takes what differs from call to call
            out = np.full((*shape[:3], 24), np.nan, np.float32)
            kernels.conv2d(x, w, padding=1, algorithm=algorithm, threads=threads, out=out)
            # F(6) errs by 2.5e-5 rms, the others by less; the largest of 43,200 by five times that.
            assert np.abs(out - expected).max() <= 1e-3 * np.sqrt(np.square(expected).mean())
