"""Matrix products of bfloat16 with sums of float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from instruction_set import BFLOAT16_ISAS, forced
from test_matmul import EPSILON, ORDERS, check, draw, poisoned, stored, wanted_of

from bestof import kernels
from bestof.errors import KernelError

NAME = "blocked_bf16"
SHAPES = (
    *((1, 1, 1), (15, 33, 47), (40, 130, 33), (5, 700, 64), (300, 9, 70), (7, 0, 3)),
    *((70, 500, 40), (33, 1100, 33), (300, 2100, 9)),  # depth in chunks, rows in blocks
    *((20, 40, 170), (700, 40, 20)),  # fewer and more blocks than threads
)


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and the instruction set that has the products in hardware."""
    yield from forced(request.param)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operands_of_float32_are_rounded_once(shape: tuple[int, int, int], order: str) -> None:
    """The products of rounded operands are exact, so only the sums err."""
    m, k, n = shape
    random = draw(m)
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    bias, residual = (random.standard_normal(s, np.float32) for s in (n, (m, n)))
    exact = value_of(rounded(a.copy())), value_of(rounded(b.copy()))
    wanted = wanted_of(*exact, bias, residual)
    for threads in (1, 3, 5):
        for columns in (b, kernels.pack_matrix(b, algorithm=NAME)):
            out = poisoned(m, n)
            kernels.matmul(
                a, columns, bias, residual=residual, out=out, algorithm=NAME, threads=threads
            )
            check(out, wanted, k)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrices_of_bfloat16(shape: tuple[int, int, int], order: str) -> None:
    m, k, n = shape
    random = draw(n)
    a, b = (
        np.swapaxes(rounded(np.swapaxes(x, -1, -2).copy()), -1, -2) if kind == "T" else rounded(x)
        for kind, x in zip(
            order,
            (stored(random, order[0], 2, m, k), stored(random, order[1], 2, k, n)),
            strict=True,
        )
    )
    bias = random.standard_normal(n, np.float32)
    wanted = wanted_of(value_of(a), value_of(b), bias)
    for out in (np.empty((2, m, n), np.uint16), np.empty((2, n, m), np.uint16).swapaxes(1, 2)):
        out[...] = 0x7FC0  # NaN
        kernels.matmul(a, b, bias, out=out, dtype="bfloat16", threads=2)
        error = np.abs(value_of(out) - wanted.value)
        bound = UNIT * np.abs(wanted.value) + 1.01 * EPSILON * (k + 3) * wanted.magnitude
        assert (error <= bound).all()


def test_a_factor_of_bfloat16_is_rounded_with_the_sum() -> None:
    """silu is 1.1-Lipschitz; the result is rounded once, after the multiplication."""
    random = draw(15)
    for m, k, n in SHAPES:
        a, b, factor = (
            rounded(random.standard_normal(shape, np.float32)) for shape in ((m, k), (k, n), (m, n))
        )
        wanted = wanted_of(value_of(a), value_of(b))
        expected = wanted.value / (1 + np.exp(-wanted.value)) * value_of(factor)
        out = np.full((m, n), 0x7FC0, np.uint16)
        kernels.matmul(
            *(a, b), factor=factor, out=out, activation="silu", dtype="bfloat16", threads=2
        )
        error = np.abs(value_of(out) - expected)
        sums = 1.1 * EPSILON * (k + 9) * (wanted.magnitude + 1) * np.abs(value_of(factor))
        assert (error <= UNIT * np.abs(expected) + 1.01 * sums).all()


def test_a_promise_of_its_own() -> None:
    random = draw(3)
    a, b = stored(random, "N", 40, 2000), stored(random, "T", 2000, 60)
    promise = kernels.matmul_algorithms(a.shape, b.shape)[NAME]
    assert promise.algorithm.relaxed
    assert promise.algorithm.dtypes == ("float32", "bfloat16")
    assert promise.algorithm.emulated is not kernels.isa().endswith("_bf16")
    wanted = wanted_of(a, b).value
    error = kernels.matmul(a, b, algorithm=NAME) - wanted
    scale = np.sqrt(np.mean(wanted**2))
    assert 1e-4 * scale < np.sqrt(np.mean(error**2)) <= promise.error_bound * scale
    assert np.abs(error).max() <= promise.maximum_bound * scale
    packed = kernels.pack_matrix(b, algorithm=NAME)
    assert packed.nbytes <= 1.1 * b.nbytes / 2
    of_bfloat16 = kernels.matmul_algorithms(a.shape, b.shape, dtype="bfloat16")
    assert list(of_bfloat16) == [NAME]  # operands of bfloat16 are not rounded
    assert of_bfloat16[NAME].error_bound == pytest.approx(promise.error_bound - 3e-3)
    with pytest.raises(KernelError, match="expected one that applies"):
        kernels.matmul(rounded(a), rounded(b), dtype="bfloat16", algorithm="blocked")
