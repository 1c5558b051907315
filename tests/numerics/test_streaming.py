"""Small problems whose results bypass the caches, because a tiny last cache is pretended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from bestof import kernels
from bestof.kernels import _native


@pytest.fixture(autouse=True)
def tiny_cache() -> Iterator[None]:
    _native.assume_level3(1)
    yield
    _native.assume_level3(0)


def guarded(shape: tuple[int, ...], offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return NaN of that shape, `offset` floats past a cache line, and the NaN around it."""
    size = int(np.prod(shape))
    whole = np.full(size + 96, np.nan, np.float32)
    first = 32 + -whole[32:].ctypes.data % 64 // 4 + offset
    return whole[first : first + size].reshape(shape), whole


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize(
    "shape", [(2, 16, 16, 16), (1, 80, 3, 48), (2, 64, 5, 66), (1, 17, 4, 33)], ids=str
)
def test_every_permutation(shape: tuple[int, ...], offset: int) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for axes in itertools.permutations(range(4)):
        wanted = np.ascontiguousarray(x.transpose(axes))
        out, whole = guarded(wanted.shape, offset)
        kernels.transpose(x, axes, out=out)
        np.testing.assert_array_equal(out, wanted, err_msg=str(axes))
        assert np.isnan(whole).sum() == whole.size - x.size, axes


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_focal_loss(reduction: str, offset: int) -> None:
    draw = np.random.default_rng(7)
    x = draw.standard_normal((3, 16384 + 7), np.float32)
    targets = (draw.random(x.shape) < 0.01).astype(np.float32)
    targets[1, :700] = 0.5
    out, whole = guarded(x.shape, offset)
    loss, _ = kernels.focal_loss(x, targets, gradient=out, reduction=reduction, threads=2)
    _native.assume_level3(0)
    wanted, gradient = kernels.focal_loss(x, targets, reduction=reduction, threads=2)
    np.testing.assert_array_equal(loss, wanted)
    np.testing.assert_array_equal(out, gradient)
    assert np.isnan(whole).sum() == whole.size - x.size


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("channels", [16, 48, 20])
@pytest.mark.parametrize(
    "algorithm",
    [
        row.name
        for row in kernels.algorithms().values()
        if row.shapes == "kernel" and row.kernel == (3, 3) and row.stride == 1
    ],
)
def test_convolutions(algorithm: str, channels: int, offset: int) -> None:
    draw = np.random.default_rng(5)
    x = draw.standard_normal((3, 41, 39, 16), np.float32)
    w = draw.standard_normal((channels, 3, 3, 16), np.float32)
    bias = draw.standard_normal(channels, np.float32)
    arguments = {"bias": bias, "padding": 1, "activation": "relu", "algorithm": algorithm}
    out, whole = guarded((3, 41, 39, channels), offset)
    kernels.conv2d(x, w, out=out, **arguments)
    _native.assume_level3(0)
    wanted = kernels.conv2d(x, w, **arguments).astype(np.float64)
    bound = kernels.conv2d_algorithms(x.shape, w.shape, padding=1)[algorithm].error_bound
    # Both are within the bound of the true result.
    assert np.sqrt(np.mean((out - wanted) ** 2)) <= 2 * bound * np.sqrt(np.mean(wanted**2))
    assert np.isnan(whole).sum() == whole.size - out.size
