"""Batch norm with fixed statistics against a float64 oracle, over the whole range of float32."""

from __future__ import annotations

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float32 = NDArray[np.float32]
EPS = float(np.finfo(np.float32).eps) / 2
LARGEST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
# Channels and pixels below, at and beyond a vector; pieces of a plane; several threads.
SHAPES = ((1, 1, 1), (2, 3, 5), (1, 16, 16), (2, 17, 49), (3, 64, 33), (1, 2, 40000), (5, 70, 200))


def statistics(channels: int, size: float = 1.0) -> list[Float32]:
    """Return mean, variance, weight and bias; the mean is up to 100 times the deviation."""
    rng = np.random.default_rng(channels)
    mean, weight, bias = (rng.standard_normal(channels) for _ in range(3))
    variance = rng.random(channels) + 0.01
    wanted = (100 * size * mean, size * size * variance, weight, bias)
    return [one.astype(np.float32) for one in wanted]


def oracle(mean: Float32, variance: Float32, weight: Float32, bias: Float32, eps: float) -> tuple:
    """Return scale and shift, in float64."""
    scale = weight.astype(np.float64) / np.sqrt(variance.astype(np.float64) + eps)
    return scale, bias - mean * scale


def drawn(shape: tuple[int, ...], size: float = 1.0) -> Float32:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * size).astype(np.float32)


def along(values: NDArray, last: bool) -> NDArray:
    return values if last else values[:, None]


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1.0, 1e-15, 1e15])
def test_both_passes(shape: tuple[int, ...], relu: bool, last: bool, size: float) -> None:
    n, channels, pixels = shape
    x = drawn((n, pixels, channels) if last else shape, size)
    given = statistics(channels, size)
    eps = 1e-5 if size == 1.0 else 0.0
    guarded = np.full(x.size + 64, np.nan, np.float32)
    y = guarded[32:-32].reshape(x.shape)
    kernels.frozen_norm(x, *given, eps=eps, relu=relu, channels_last=last, out=y, threads=2)
    assert np.isnan(guarded[:32]).all()
    assert np.isnan(guarded[-32:]).all()
    scale, shift = (along(one, last) for one in oracle(*given, eps))
    wanted = x * scale + shift
    # Scale, shift, product and sum are rounded once each. A fused product saves one rounding.
    bound = EPS * (2 * np.abs(x * scale) + np.abs(shift) + 1.01 * np.abs(wanted)) * 1.01 + LEAST
    if relu:
        wanted = np.maximum(wanted, 0)
    assert (np.abs(y - wanted) <= bound).all()
    g = drawn(x.shape[::-1]).reshape(x.shape)
    slope = kernels.frozen_norm_backward(
        g, y if relu else None, given[1], given[2], eps=eps, channels_last=last, threads=2
    )
    wanted = np.where(y <= 0, 0, g * scale) if relu else g * scale
    assert (np.abs(slope - wanted) <= 2.01 * EPS * np.abs(wanted) + LEAST).all()
    # In place, the same bits.
    kernels.frozen_norm(x, *given, eps=eps, relu=relu, channels_last=last, out=x, threads=1)
    assert np.array_equal(x, y)


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_passes_of_bfloat16(shape: tuple[int, ...], relu: bool, last: bool) -> None:
    """The arithmetic is that of float32. Then the result is rounded."""
    n, channels, pixels = shape
    dimensions = (n, pixels, channels) if last else shape
    x, g = (rounded(drawn(dimensions, size)) for size in (1.0, 3.0))
    given = statistics(channels)
    scale, shift = (along(one, last) for one in oracle(*given, 1e-5))
    how = {"channels_last": last, "dtype": "bfloat16", "threads": 2}
    guarded = np.full(x.size + 64, 0x7FC0, np.uint16)  # NaN
    y = guarded[32:-32].reshape(x.shape)
    kernels.frozen_norm(x, *given, relu=relu, out=y, **how)
    assert (guarded[:32] == 0x7FC0).all()
    assert (guarded[-32:] == 0x7FC0).all()
    product = value_of(x) * scale
    wanted = np.maximum(product + shift, 0) if relu else product + shift
    plain = EPS * (2 * np.abs(product) + np.abs(shift) + 1.01 * np.abs(product + shift)) * 1.01
    assert (np.abs(value_of(y) - wanted) <= UNIT * np.abs(wanted) + (1 + UNIT) * plain).all()
    slope = np.full(x.shape, 0x7FC0, np.uint16)
    kernels.frozen_norm_backward(g, y if relu else None, given[1], given[2], out=slope, **how)
    wanted = value_of(g) * scale * ((value_of(y) > 0) if relu else 1)
    allowed = (UNIT + 2.02 * EPS) * np.abs(wanted)
    assert (np.abs(value_of(slope) - wanted) <= allowed).all()
    kernels.frozen_norm(x, *given, relu=relu, out=x, **{**how, "threads": 1})
    assert np.array_equal(x, y)


def test_bfloat16_keeps_nan_and_infinity() -> None:
    one = np.ones(1, np.float32)
    x = np.array([[0x7F80, 0xFF80, 0x7FC0, 0x8000, 0x3F80]], np.uint16).T.copy()
    y = kernels.frozen_norm(x, 0 * one, one, eps=0.0, relu=True, out=x.copy(), dtype="bfloat16")
    assert value_of(y)[[0, 1, 3, 4], 0].tolist() == [np.inf, 0.0, 0.0, 1.0]
    assert np.isnan(value_of(y)[2, 0])
    slope = kernels.frozen_norm_backward(x, y, one, eps=0.0, out=x.copy(), dtype="bfloat16")
    assert value_of(slope)[[0, 1, 3, 4], 0].tolist() == [np.inf, 0.0, 0.0, 1.0]
    assert np.isnan(value_of(slope)[2, 0])


EXTREMES = np.array(
    [0.0, -0.0, LEAST, -LEAST, 1e-38, 1.0, -1.0, 1e30, LARGEST, -LARGEST, np.inf, -np.inf, np.nan],
    np.float32,
)


@pytest.mark.parametrize("variance", [0.0, LEAST, 1e-30, 1.0, 1e30, LARGEST])
@pytest.mark.parametrize("relu", [False, True])
def test_the_whole_range(variance: float, relu: bool) -> None:
    x = EXTREMES[:, None]
    one = np.ones(1, np.float32)
    spread = one * np.float32(variance)
    y = kernels.frozen_norm(x, 0 * one, spread, 3 * one, 2 * one, eps=1e-12, relu=relu)
    scale = 3 / np.sqrt(np.float64(spread[0]) + 1e-12)
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float64) * scale + 2
        if relu:
            wanted = np.maximum(wanted, 0)
        near = np.abs(y - wanted) <= EPS * (2 * np.abs(x * scale) + 2 + np.abs(wanted)) * 1.01
    over = (np.abs(wanted) > LARGEST * (1 - 4 * EPS)) & (y == np.copysign(np.inf, wanted))
    assert (
        near | over | (np.isnan(wanted) & np.isnan(y)) | (np.isinf(wanted) & (y == wanted))
    ).all()
    slope = kernels.frozen_norm_backward(x, None, spread, 3 * one, eps=1e-12)
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float64) * scale
        near = np.abs(slope - wanted) <= 2.01 * EPS * np.abs(wanted) + LEAST
    over = (np.abs(wanted) > LARGEST * (1 - 4 * EPS)) & (slope == np.copysign(np.inf, wanted))
    assert (near | over | (np.isnan(wanted) & np.isnan(slope)) | (wanted == slope)).all()


def test_a_mask_passes_what_is_above_0_and_nan() -> None:
    y = np.array([[-1.0, 0.0, LEAST, 1.0, np.nan]], np.float32).T.copy()
    g = np.full((5, 1), np.inf, np.float32)
    one = np.ones(1, np.float32)
    slope = kernels.frozen_norm_backward(g, y, one, eps=0.0)
    assert slope[:, 0].tolist() == [0.0, 0.0, np.inf, np.inf, np.inf]


def test_large_results_that_bypass_the_caches() -> None:
    x = np.ones((2048, 160, 160), np.float32)
    given = statistics(160)
    y = kernels.frozen_norm(x, *given, relu=True, threads=2)
    row = kernels.frozen_norm(x[0, :1], *given, relu=True)
    assert (y == row).all()
    slope = kernels.frozen_norm_backward(x, y, given[1], given[2], out=x, threads=2)
    assert (slope == kernels.frozen_norm_backward(np.ones_like(row), row, *given[1:3])).all()


def test_without_weight_and_bias_and_without_elements() -> None:
    x = drawn((3, 4))
    mean, variance, _, _ = statistics(4)
    wanted = (x - mean.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + 1e-5)
    assert np.allclose(kernels.frozen_norm(x, mean, variance), wanted, rtol=1e-4, atol=1e-4)
    assert kernels.frozen_norm(x[:0], mean, variance).shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x": np.ones(4, np.float32)}, "x: expected two axes"),
        ({"x": np.ones((2, 4))}, "float32"),
        ({"dtype": "float64"}, "dtype: expected 'float32' or 'bfloat16'; got 'float64'"),
        ({"dtype": "bfloat16"}, "x: .*bfloat16"),
        ({"mean": np.ones(3, np.float32)}, "mean: expected"),
        ({"variance": np.ones((1, 4), np.float32)}, "variance: expected"),
        ({"eps": -1.0}, "eps: expected a number of at least 0; got -1.0"),
        ({"eps": "small"}, "eps: expected a number; got 'small'"),
        ({"threads": -1}, "threads: expected"),
        ({"out": np.ones((4, 2), np.float32)}, "out: expected"),
    ],
)
def test_bad_input_is_refused(change: dict, told: str) -> None:
    one = np.ones(4, np.float32)
    given = {"x": np.ones((2, 4), np.float32), "mean": one, "variance": one, **change}
    with pytest.raises(KernelError, match=told):
        kernels.frozen_norm(**given)


def test_an_overlap_in_part_is_refused() -> None:
    memory = np.ones(12, np.float32)
    one = np.ones(4, np.float32)
    with pytest.raises(KernelError, match="out"):
        kernels.frozen_norm(memory[:8].reshape(2, 4), one, one, out=memory[4:].reshape(2, 4))
    with pytest.raises(KernelError, match="out"):
        kernels.frozen_norm_backward(
            memory[:8].reshape(2, 4), None, one, out=memory[4:].reshape(2, 4)
        )
