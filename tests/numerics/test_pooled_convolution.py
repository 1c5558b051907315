"""Winograd with pooled results: the same bits as computing all results and pooling them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bfloat16 import rounded, value_of
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float32 = NDArray[np.float32]
ALGORITHMS = [row.name for row in kernels.algorithms().values() if row.pools]
# Images that end inside a tile at every place, few tiles and many, channels that fill no vector,
# more results than a panel.
SHAPES = (
    *((2, rows, 2 + (5 * rows + 1) % 12, 5, 9) for rows in range(2, 14)),
    (1, 26, 35, 3, 70),
    (3, 61, 50, 4, 16),
    (1, 14, 14, 64, 64),
)


def _pooled(y: Float32) -> Float32:
    n, h, w, k = y.shape
    y = y[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, k)
    return np.asarray(y.max(axis=(2, 4)))  # NumPy's maximum is NaN where one of them is


def _run(
    x: Float32,
    w: Float32,
    bias: Float32 | None,
    algorithm: str,
    activation: kernels.problem.Activation,
    dtype: str = "float32",
) -> tuple[Float32, Float32]:
    """What is computed and then pooled, and what is pooled on the way, between guards."""
    results = []
    guard, nan = (12345.0, np.nan) if dtype == "float32" else (12345, 0x7FC1)
    for pool in (False, True):
        plan = kernels.Conv2dPlan(
            x.shape,
            w.shape,
            padding=1,
            algorithm=algorithm,
            activation=activation,
            pool=pool,
            dtype=dtype,
        )
        count = int(np.prod(plan.y_shape))
        whole = np.full(count + 128, guard, x.dtype)
        y = whole[64 : 64 + count].reshape(plan.y_shape)
        y[...] = nan
        plan.run(
            x.ctypes.data,
            kernels.pack_weights(w, algorithm, dtype=dtype),
            y.ctypes.data,
            0 if bias is None else bias.ctypes.data,
        )
        assert (np.concatenate([whole[:64], whole[-64:]]) == guard).all(), (
            "it wrote outside its result"
        )
        results.append(y if dtype == "float32" else value_of(y))
    return _pooled(results[0]), results[1]


@pytest.mark.long(every=5)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_largest_of_all_results(
    shape: tuple[int, int, int, int, int], dtype: str, algorithm: str
) -> None:
    n, h, w, c, k = shape
    rng = np.random.default_rng(5)
    x, weights = (
        rng.standard_normal((n, h, w, c), np.float32),
        rng.standard_normal((k, 3, 3, c), np.float32),
    )
    bias = rng.standard_normal(k, np.float32)
    if dtype == "bfloat16":
        x, weights = rounded(x), rounded(weights)
    for activation in (None, "relu", "relu6", ("leaky_relu", 0.3)):
        wanted, got = _run(x, weights, bias, algorithm, activation, dtype)
        np.testing.assert_array_equal(got, wanted)
    assert not np.isnan(got).any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_nan_wins(algorithm: str) -> None:
    rng = np.random.default_rng(6)
    x, weights = (
        rng.standard_normal((1, 17, 15, 3), np.float32),
        rng.standard_normal((5, 3, 3, 3), np.float32),
    )
    x[0, 8, 3, 1] = np.nan
    wanted, got = _run(x, weights, None, algorithm, None)
    np.testing.assert_array_equal(got, wanted)
    assert 0 < np.isnan(got).sum() < got.size


def test_invalid_poolings_are_refused() -> None:
    x, w = (1, 8, 8, 4), (6, 3, 3, 4)

    def plan(
        algorithm: str = "winograd4", x: tuple[int, ...] = x, **options: object
    ) -> kernels.Conv2dPlan:
        fixed: dict[str, Any] = {"padding": 1, "algorithm": algorithm, "pool": True}
        return kernels.Conv2dPlan(x, w, **fixed, **options)

    with pytest.raises(
        KernelError, match="pool: expected an algorithm that pools what it computes; got direct"
    ):
        plan("direct")
    for activation in ("silu", "hard_swish", ("leaky_relu", -0.1)):
        with pytest.raises(KernelError, match="pool: expected an activation that never falls"):
            plan(activation=activation)
    with pytest.raises(KernelError, match="pool: expected 2x2 results at least; got 1x8"):
        plan(x=(1, 1, 8, 4))
    with pytest.raises(KernelError, match="pool: expected an algorithm"):
        plan(direction="backward_input")
    y, given = np.zeros((1, 4, 4, 6), np.float32), np.zeros((1, 8, 8, 6), np.float32)
    with pytest.raises(KernelError, match="residual: expected none where results are pooled"):
        plan().run(
            np.zeros(x, np.float32).ctypes.data,
            np.zeros(w, np.float32).ctypes.data,
            y.ctypes.data,
            0,
            given.ctypes.data,
        )
    rows = kernels.conv2d_algorithms(x, w, padding=1)
    assert {name for name, row in rows.items() if row.pools} == set(ALGORITHMS)
