"""Matrix products against float64, element by element.

A sum of K products in any order errs by at most eps * (K + 2) * sum |a b|. Random signs cancel: the
promised bound grows with the square root of K, and holds for the rms of the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from activation import REFERENCES
from fenced_memory import at_the_end
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray

from bestof import kernels
from bestof.kernels.problem import Activation

EPSILON = float(np.finfo(np.float32).eps) / 2
Matrix = NDArray[np.float32]
Float64 = NDArray[np.float64]

# Rows, depth, columns: whole tiles and panels, one more and one less, a single element, nothing to
# add up, and depths of one block and of several.
SHAPES = (
    (1, 1, 1),
    (14, 16, 32),
    (15, 17, 33),
    (13, 31, 31),
    (28, 5, 64),
    (6, 769, 17),
    (169, 40, 70),
    (40, 30, 300),
    (3, 1600, 5),
    (200, 7, 3),
    (70, 800, 90),
    (16, 64, 16),
    (17, 0, 9),
)
ORDERS = ("NN", "NT", "TN", "TT")
ROWS = tuple(kernels.matmul_algorithms((1, 1), (1, 1)).values())
FLOAT32 = tuple(row.algorithm.name for row in ROWS if not row.algorithm.relaxed)


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and those whose products of float32 differ from avx512's."""
    yield from forced(request.param)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The result in float64, and the sum of the magnitudes of what is added up."""

    value: Float64
    magnitude: Float64


def wanted_of(a: Matrix, b: Matrix, *added: Matrix | None) -> Wanted:
    """Return a @ b plus the addends."""
    wide = a.astype(np.float64), b.astype(np.float64)
    value, magnitude = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    for addend in added:
        if addend is not None:
            value, magnitude = value + addend, magnitude + np.abs(addend)
    return Wanted(value, magnitude)


def check(result: Matrix, wanted: Wanted, depth: int) -> None:
    """Hold every element to the bound; NaN fails."""
    assert result.shape == wanted.value.shape
    error = np.abs(result - wanted.value)
    assert (error <= EPSILON * (depth + 3) * wanted.magnitude).all()


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def stored(random: np.random.Generator, order: str, *shape: int) -> Matrix:
    """Return a matrix, or a batch, that lies row by row (N) or column by column (T)."""
    if order == "N":
        return random.standard_normal(shape, np.float32)
    lying = (*shape[:-2], shape[-1], shape[-2])
    return np.swapaxes(random.standard_normal(lying, np.float32), -1, -2)


def poisoned(*shape: int) -> Matrix:
    return np.full(shape, np.nan, np.float32)


def applicable(m: int, n: int) -> tuple[str, ...]:
    return tuple(
        name
        for name, promise in kernels.matmul_algorithms((m, 1), (1, n)).items()
        if not promise.algorithm.relaxed
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_algorithm_from_every_orientation(shape: tuple[int, int, int], order: str) -> None:
    m, k, n = shape
    random = draw(m * 1000 + k)
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    bias = random.standard_normal(n, np.float32)
    wanted = wanted_of(a, b, bias)
    for name in applicable(m, n):
        for threads in (1, 3):
            for out in (poisoned(m, n), poisoned(n, m).T):
                result = kernels.matmul(a, b, bias, algorithm=name, out=out, threads=threads)
                assert result is out
                check(out, wanted, k)
    packed = kernels.pack_matrix(b)
    assert packed.shape == (k, n)
    check(kernels.matmul(a, packed, bias, out=poisoned(m, n), threads=2), wanted, k)


@pytest.mark.parametrize("name", FLOAT32)
def test_the_promise_of_large_sums(name: str) -> None:
    """Random signs: the rms of the error grows with the square root of the depth."""
    random = draw(3)
    m, k, n = 16, 5000, 150
    a, b = stored(random, "N", m, k), stored(random, "N", k, n)
    promise = kernels.matmul_algorithms(a.shape, b.shape)[name]
    wanted = wanted_of(a, b).value
    error = kernels.matmul(a, b, algorithm=name) - wanted
    scale = np.sqrt(np.mean(wanted**2))
    assert np.sqrt(np.mean(error**2)) <= promise.error_bound * scale
    assert np.abs(error).max() <= promise.maximum_bound * scale
    assert promise.error_bound == pytest.approx(1e-6 * np.sqrt(k / 512))
    assert promise.flops == 2.0 * m * k * n


@pytest.mark.parametrize("name", FLOAT32)
def test_batches(name: str) -> None:
    random = draw(4)
    m, k, n = 4, 37, 45  # joined batches of 4 still have 16 rows
    for a_batch, b_batch in ((3, 3), (1, 3), (3, 1), (3, 0), (0, 3)):
        for order in ORDERS:
            a = stored(random, order[0], *([a_batch] if a_batch else []), m, k)
            b = stored(random, order[1], *([b_batch] if b_batch else []), k, n)
            check(kernels.matmul(a, b, algorithm=name), wanted_of(a, b), k)
    a = np.broadcast_to(stored(random, "N", m, k), (4, m, k))
    b = stored(random, "N", 4, k, n)
    out = poisoned(4, n, m)
    check(kernels.matmul(a, b, algorithm=name, out=out.swapaxes(1, 2)), wanted_of(a, b), k)
    heads = poisoned(m, 4, n).swapaxes(0, 1)  # rows of one matrix between those of another
    check(kernels.matmul(a, b, algorithm=name, out=heads), wanted_of(a, b), k)
    flat = np.ascontiguousarray(a)
    check(kernels.matmul(flat, b[0], algorithm=name), wanted_of(flat, b[0]), k)  # one product


@pytest.mark.parametrize("name", FLOAT32)
def test_strides_of_every_kind(name: str) -> None:
    """Steps in both directions, repeated rows, and rows so far apart that they share cache sets."""
    random = draw(5)
    a, b = stored(random, "N", 16, 2048), stored(random, "N", 2048, 80)
    views = [
        (a[:, ::2], b[::2, :40]),
        (a[::3, :100], b[100:0:-1, 1::2]),
        (a[::-1, :64], b[:64, ::-1]),
        (a[:1, :64].repeat(1, 0), b[:64]),
        (np.broadcast_to(a[0, :64], (9, 64)), np.broadcast_to(b[:64, :1], (64, 70))),
        (a[:, :1024], b[:1024]),
    ]
    for left, right in views:
        check(kernels.matmul(left, right, algorithm=name), wanted_of(left, right), left.shape[1])


@pytest.mark.parametrize("name", FLOAT32)
@pytest.mark.parametrize("activation", REFERENCES, ids=str)
def test_epilogues(name: str, activation: Activation) -> None:
    """Each is computed to a few roundings."""
    reference = REFERENCES[activation]
    random = draw(6)
    for m, k, n in ((16, 20, 50), (9, 900, 33), (2, 1, 64)):
        for order in ORDERS:
            a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
            bias, residual = (random.standard_normal(s, np.float32) for s in (n, (m, n)))
            wanted = wanted_of(a, b, bias, residual)
            out = residual.copy()
            kernels.matmul(
                a, b, bias, residual=out, out=out, activation=activation, algorithm=name, threads=2
            )
            apart = kernels.matmul(
                a, b, bias, residual=residual, activation=activation, algorithm=name
            )
            np.testing.assert_array_equal(out, apart)
            error = np.abs(out - reference.value(wanted.value))
            assert (error <= reference.steepest * EPSILON * (k + 8) * (wanted.magnitude + 1)).all()


def test_gelu_is_as_good_for_every_argument() -> None:
    """The probability is fitted to 6e-8, and rounded a few times. It is 0 or 1 far from 0."""
    arguments = np.linspace(-7, 7, 200_001, dtype=np.float32)
    out = kernels.matmul(arguments[:, None], np.ones((1, 17), np.float32), activation="gelu")
    wanted = REFERENCES["gelu"].value(arguments.astype(np.float64))[:, None]
    allowed = (6e-8 + 3 * EPSILON) * np.abs(arguments)[:, None]
    assert (np.abs(out - wanted) <= allowed).all()
    far = np.array([-3e38, -1e4, -6, 6, 1e4, 3e38, np.inf, np.nan, -np.inf], np.float32)
    out = kernels.matmul(far[:, None], np.ones((1, 1), np.float32), activation="gelu")[:, 0]
    wanted = np.array([0, 0, 0, 6, 1e4, 3e38, np.inf, np.nan, np.nan], np.float32)
    np.testing.assert_allclose(out, wanted, rtol=2 * EPSILON, atol=0)


@pytest.mark.parametrize("name", FLOAT32)
@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu_tanh"])
def test_factors_multiply_what_the_activation_returns(name: str, activation: Activation) -> None:
    """Errors of the result before grow by the factor, which is rounded in once."""
    reference = REFERENCES[activation]
    random = draw(14)
    for m, k, n in ((16, 20, 50), (9, 1700, 33), (2, 1, 64), (15, 0, 40), (4, 30, 3)):
        for order in ORDERS:
            a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
            bias = random.standard_normal(n, np.float32)
            residual, factor = (random.standard_normal((m, n), np.float32) for _ in range(2))
            wanted = wanted_of(a, b, bias, residual)
            value = reference.value(wanted.value) * factor
            sums = reference.steepest * EPSILON * (k + 9) * (wanted.magnitude + 1)
            allowed = sums * np.abs(factor)
            for turned, threads in ((False, 2), (True, 5)):
                out = poisoned(n, m).T if turned else poisoned(m, n)
                alike = [np.asfortranarray(one) if turned else one for one in (residual, factor)]
                given = kernels.matmul(
                    *(a, b, bias),
                    residual=alike[0],
                    factor=alike[1],
                    out=out,
                    activation=activation,
                    algorithm=name,
                    threads=threads,
                )
                assert given is out
                assert (np.abs(out - value) <= allowed).all()


@pytest.mark.parametrize("order", ORDERS)
def test_few_tiles_share_the_depth(order: str) -> None:
    """A small result of a long sum: threads share the depth, also of packed columns."""
    random = draw(7)
    m, k, n = 20, 4000, 24
    a, b = stored(random, order[0], m, k), stored(random, order[1], k, n)
    bias, residual = (random.standard_normal(s, np.float32) for s in (n, (m, n)))
    wanted = wanted_of(a, b, bias, residual)
    for columns in (b, kernels.pack_matrix(b)):
        for threads in (4, 7):
            result = kernels.matmul(a, columns, bias, residual=residual, threads=threads)
            check(result, wanted, k)
            times = kernels.matmul(
                a, columns, bias, residual=residual, factor=2 * residual, threads=threads
            )
            doubled = Wanted(2 * residual * wanted.value, 2 * abs(residual) * wanted.magnitude)
            check(times, doubled, k + 1)
    few = kernels.matmul_algorithms(a.shape, b.shape, threads=1)["blocked"].scratch_bytes
    assert kernels.matmul_algorithms(a.shape, b.shape, threads=7)["blocked"].scratch_bytes > few


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 4, 0), (0, 0, 0), (3, 0, 5)])
def test_nothing_to_multiply(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    bias = np.arange(n, dtype=np.float32)
    for name in FLOAT32:
        result = kernels.matmul(a, b, bias, algorithm=name, out=poisoned(m, n))
        np.testing.assert_array_equal(result, np.broadcast_to(bias, (m, n)))
    empty = kernels.matmul(np.ones((0, 2, 3), np.float32), np.ones((3, 4), np.float32))
    assert empty.shape == (0, 2, 4)


@pytest.mark.parametrize("name", FLOAT32)
def test_nan_and_infinity_stay_where_they_belong(name: str) -> None:
    random = draw(8)
    for order in ORDERS:
        a, b = stored(random, order[0], 15, 45), stored(random, order[1], 45, 37)
        usual = kernels.matmul(a, b, algorithm=name)
        a[3, 44], a[14, 0], b[7, 36] = np.nan, np.inf, np.inf
        got = kernels.matmul(a, b, algorithm=name)
        assert np.isnan(got[3]).all()
        assert not np.isfinite(got[14]).any()
        assert not np.isfinite(got[:, 36]).any()
        rest = np.delete(np.arange(15), (3, 14))
        np.testing.assert_array_equal(got[rest, :36], usual[rest, :36])


@pytest.mark.parametrize("name", FLOAT32)
def test_no_byte_behind_an_operand_is_touched(name: str) -> None:
    random = draw(9)
    for m, k, n in ((15, 33, 47), (16, 8, 32), (3, 19, 5), (7, 530, 9)):
        for order in ORDERS:
            a, b = (
                at_the_end(random.standard_normal(s, np.float32))
                for s in (
                    (m, k) if order[0] == "N" else (k, m),
                    (k, n) if order[1] == "N" else (n, k),
                )
            )
            bias = at_the_end(random.standard_normal(n, np.float32))
            left, right = a if order[0] == "N" else a.T, b if order[1] == "N" else b.T
            wanted = wanted_of(left, right, bias)
            out, turned = at_the_end(poisoned(m, n)), at_the_end(poisoned(n, m))
            check(kernels.matmul(left, right, bias, out=out, algorithm=name), wanted, k)
            check(kernels.matmul(left, right, bias, out=turned.T, algorithm=name), wanted, k)


@pytest.mark.parametrize("name", FLOAT32)
def test_nothing_beside_the_result_is_written(name: str) -> None:
    random = draw(10)
    a, b = stored(random, "N", 16, 60), stored(random, "T", 60, 70)
    frame = poisoned(20, 80)
    frame[:] = 7
    kernels.matmul(a, b, out=frame[2:18, 5:75], algorithm=name, threads=2)
    check(frame[2:18, 5:75], wanted_of(a, b), 60)
    frame[2:18, 5:75] = 7
    assert (frame == 7).all()
