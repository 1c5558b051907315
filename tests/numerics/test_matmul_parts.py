"""Matrix products of float32 whose operands are split into three parts of bfloat16.

The parts leave out at most 2^-23 of a product. Rows and columns far from 1 are scaled by powers of
two. What is smaller than the largest of its row or column by 2^-64 may be lost, so the bound of
float32 grows by K 2^-64 times the largest of the row times the largest of the column.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray
from test_matmul import EPSILON, ORDERS, Float64, check, draw, poisoned, stored, wanted_of

from bestof import kernels

NAME = "blocked_bf16x3"
Matrix = NDArray[np.float32]


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from forced(request.param)


def products(a: Matrix, b: Matrix) -> list[Matrix]:
    """Return a @ b by B as it lies and packed, and by one thread and three."""
    shape = a.shape[0], b.shape[1]
    return [
        kernels.matmul(a, columns, algorithm=NAME, threads=threads, out=poisoned(*shape))
        for threads in (1, 3)
        for columns in (b, kernels.pack_matrix(b, algorithm=NAME))
    ]


# Tiles of 16 and 32 rows, steps of 32 of depth, blocks of 768, and one more or less; several blocks
# of rows on any L2.
SHAPES = (
    *((1, 1, 1), (15, 31, 33), (16, 32, 32), (17, 33, 31), (33, 767, 65), (49, 769, 20)),
    *((31, 1537, 64), (700, 800, 40), (64, 64, 300), (2, 0, 3)),
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_gives_the_same_bits(shape: tuple[int, int, int], order: str) -> None:
    m, k, n = shape
    random = draw(m + n)
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    first, *others = products(a, b)
    check(first, wanted_of(a, b), k)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_sums_are_more_accurate_than_those_of_vectors() -> None:
    random = draw(21)
    a, b = stored(random, "N", 128, 768), stored(random, "T", 768, 128)
    wanted = wanted_of(a, b).value

    def error(name: str) -> float:
        return float(np.square(kernels.matmul(a, b, algorithm=name) - wanted).mean())

    assert error(NAME) <= 1.1 * error("blocked")


def allowed(a: Matrix, b: Matrix, depth: int) -> Float64:
    """Return the bound of each result. Results below 2^-126 lose bits, as those of float32 do."""
    largest = np.abs(a).max(1, keepdims=True).astype(np.float64) * np.abs(b).max(0)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    lost = depth * (2.0**-64 * largest + float(np.finfo(np.float32).tiny))
    return EPSILON * (depth + 3) * magnitude + lost


@pytest.mark.parametrize("order", ORDERS)
def test_rows_and_columns_of_every_magnitude(order: str) -> None:
    """Powers of two from the least to the largest, a row or a column each.

    Sums beyond the largest float32 are not finite, as those of vectors.
    """
    random = draw(22)
    m, k, n = 280, 70, 270
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    a *= np.exp2(np.linspace(-148, 125.9, m)).astype(np.float32)[:, None]
    b *= np.exp2(np.linspace(-148, 125.9, n)).astype(np.float32)
    wanted, bound = wanted_of(a, b), allowed(a, b, k)
    fits = wanted.magnitude < np.finfo(np.float32).max
    beyond = np.abs(wanted.value) > 2.0**129
    for got in products(a, b):
        assert (np.abs(got - wanted.value)[fits] <= bound[fits]).all()
        assert not np.isfinite(got[beyond]).any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spread", [10, 60, 120])
def test_magnitudes_that_differ_within_a_row(order: str, spread: int) -> None:
    random = draw(23)
    m, k, n = 50, 900, 40
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    powers = np.exp2(random.uniform(-spread, 0, k)).astype(np.float32)
    a *= powers
    b *= powers[::-1, None]
    a[:, ::7] = 0
    for scale in (2.0**-95, 2.0**-40, 1.0, 2.0**80):
        scaled = (a * np.float32(scale)).astype(np.float32)
        wanted, bound = wanted_of(scaled, b), allowed(scaled, b, k)
        for got in products(scaled, b):
            assert (np.abs(got - wanted.value) <= bound).all()


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ([1.3e18], [1.7e30]),
        ([-(2.0**55)] * 64, [2.0**95] * 64),
        ([1.998 * 2.0**27], [2.0**100]),
        ([1.998 * 2.0**27] * 2, [2.0**100, -(2.0**100)]),
        ([1.998 * 2.0**27, -1.9 * 2.0**27], [2.0**100] * 2),
        ([2.0**125] * 3, [2.0**-60, 2.0**-50, 2.0**-40]),
        ([3.3e38, 1.0], [0.5, 2.0]),
        ([3e38, 1.0], [1e-39, 0.5]),
        ([np.inf, 1.0], [1e-40, 1.0]),
        ([np.inf, 1.0], [1e-40, 2.0**-70]),
        ([1e-40, 1.0], [np.inf, 1.0]),
        ([np.inf, 1.0], [0.0, 1.0]),
        ([2.0**-70] * 40, [2.0**-66] * 40),
        ([0.0, 1.0], [1e-40, 1e-30]),
    ],
    ids=str,
)
def test_ends_of_the_range(row: list[float], column: list[float]) -> None:
    """The result of float64, rounded to float32: finite, infinite or NaN."""
    a, b = np.array([row], np.float32), np.array([column], np.float32).T
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    for got in products(a, b):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e37, 1e-42])
@pytest.mark.parametrize("order", ORDERS)
def test_bits_do_not_depend_on_what_stands_beside(order: str, bad: float) -> None:
    random = draw(24)
    m, k, n = 75, 800, 70
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    usual = products(a, b)[0]
    rows, columns = [0, 16, 37, 74], [0, 31, 32, 69]
    a[rows, 5] = bad
    b[799, columns] = bad
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    for got in products(a, b):
        kept = np.ix_(np.delete(np.arange(m), rows), np.delete(np.arange(n), columns))
        np.testing.assert_array_equal(got[kept], usual[kept])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def test_zeros_stay_zeros() -> None:
    random = draw(25)
    a, b = stored(random, "N", 40, 100), stored(random, "N", 100, 40)
    a[7], b[:, 9] = 0, -0.0
    for got in products(a, b):
        assert (got[7] == 0).all()
        assert (got[:, 9] == 0).all()


def test_a_residual_may_be_overwritten_beside_rows_without_parts() -> None:
    random = draw(26)
    m, k, n = 40, 1600, 45
    a, b = stored(random, "N", m, k), stored(random, "T", k, n)
    a[3] *= np.float32(1e-40)
    b[:, 7] *= np.float32(1e-25)
    b[5, 9] = 1e-39
    bias, residual = (random.standard_normal(s, np.float32) for s in (n, (m, n)))
    wanted = wanted_of(a, b, bias, residual)
    for threads in (1, 2):
        out = residual.copy()
        kernels.matmul(a, b, bias, residual=out, out=out, algorithm=NAME, threads=threads)
        check(out, wanted, k)
