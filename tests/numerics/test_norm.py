"""Layer norm and RMS norm against float64, over the whole range of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float32 = NDArray[np.float32]
EPS = float(np.finfo(np.float32).eps) / 2
LEAST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)
SIZES = (1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 768, 1025)


def normed(x: Float32, centred: bool, eps: float) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True) if centred else 0.0
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    with np.errstate(all="ignore"):
        return np.asarray((wide - mean) / np.sqrt(variance + eps))


def check(
    x: Float32, centred: bool, eps: float = 1e-5, affine: bool = True, residual: Any = None
) -> Float32:
    """Compare with float64: the quotient, the product and the sum round once each.

    The sums are in float64, so neither the size of a row nor its mean adds an error. What float64
    rounds is at most 2^-20 of a unit of float32, even if the mean is 2^24 times the deviation.
    """
    random = np.random.default_rng(x.size)
    size = x.shape[-1]
    scale = random.standard_normal(size, np.float32) if affine else None
    shift = random.standard_normal(size, np.float32) if affine and centred else None
    guard = np.full(x.size + 64, np.nan, np.float32)
    out = guard[32 : 32 + x.size].reshape(x.shape)
    if centred:
        kernels.layer_norm(x, scale, shift, residual=residual, eps=eps, out=out, threads=2)
    else:
        kernels.rms_norm(x, scale, residual=residual, eps=eps, out=out, threads=2)
    assert np.isnan(guard[:32]).all()
    assert np.isnan(guard[32 + x.size :]).all()
    total = x if residual is None else x + residual
    plain = normed(total, centred, eps)
    product = plain if scale is None else plain * scale
    wanted = product if shift is None else product + shift
    bound = EPS * (2.5 * np.abs(product) + np.abs(wanted)) + 2 * LEAST
    if scale is not None:
        bound += LEAST * np.abs(scale)
    assert (np.abs(out - wanted) <= bound).all()
    return out


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: int, centred: bool) -> None:
    random = np.random.default_rng(size)
    for rows in (1, 3, 70):
        x = random.standard_normal((rows, size), np.float32)
        residual = random.standard_normal((rows, size), np.float32)
        for affine in (True, False):
            check(x, centred, affine=affine)
            check(x, centred, affine=affine, residual=residual)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-5, 1e5, 1e19, 1e37])
def test_tiny_and_huge_values(scale: float, centred: bool) -> None:
    x = (np.random.default_rng(1).standard_normal((5, 200)) * scale).astype(np.float32)
    check(x, centred)
    check(x, centred, eps=1e-45)
    check(np.full((2, 200), LARGEST, np.float32), centred)


def test_a_mean_far_from_zero_costs_nothing() -> None:
    x = np.random.default_rng(2).standard_normal((5, 200), np.float32) + np.float32(1e6)
    check(x, True)


def test_constant_rows() -> None:
    constant = np.full((2, 33), 3.0, np.float32)
    assert (kernels.layer_norm(constant) == 0).all()
    assert np.isnan(kernels.layer_norm(constant, eps=0.0)).all(), "0 / 0, as in PyTorch"
    assert (kernels.rms_norm(np.zeros((2, 33), np.float32)) == 0).all()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 20, 36])
def test_what_is_not_finite_stays_in_its_row(bad: float, at: int, centred: bool) -> None:
    x = np.random.default_rng(3).standard_normal((4, 37), np.float32)
    x[2, at] = bad
    out = kernels.layer_norm(x) if centred else kernels.rms_norm(x)
    assert np.isfinite(np.delete(out, 2, axis=0)).all()
    assert np.isnan(out[2, at])
    assert centred is False or np.isnan(out[2]).all()


def test_the_sum_may_lie_where_its_terms_do() -> None:
    random = np.random.default_rng(4)
    x, residual = (random.standard_normal((6, 50), np.float32) for _ in range(2))
    wanted = kernels.layer_norm(x, residual=residual)
    for name in ("x", "residual"):
        given = {"x": x.copy(), "residual": residual.copy()}
        kernels.layer_norm(given["x"], residual=given["residual"], out=given[name])
        np.testing.assert_array_equal(given[name], wanted)


@pytest.mark.parametrize("isa", kernels.isas())
def test_every_instruction_set(isa: str) -> None:
    before = kernels.isa()
    try:
        kernels.use_isa(isa)
        random = np.random.default_rng(5)
        for size in SIZES:
            x = random.standard_normal((3, size), np.float32)
            check(x, True, residual=x[::-1].copy())
            check(x, False)
    finally:
        kernels.use_isa(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int) -> None:
    x = np.random.default_rng(6).standard_normal((300, 200), np.float32)
    one = kernels.layer_norm(x, threads=1)
    np.testing.assert_array_equal(kernels.layer_norm(x, threads=threads), one)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.ones((), np.float32),), {}, "x: expected rows"),
        ((np.ones((2, 0), np.float32),), {}, "x: expected rows"),
        ((X.astype(np.float64),), {}, "x: "),
        ((X, np.ones(2, np.float32)), {}, "scale: "),
        ((X, None, np.ones((1, 3), np.float32)), {}, "shift: "),
        ((X,), {"residual": np.ones((3, 2), np.float32)}, "residual: "),
        ((X,), {"out": np.ones((3, 2), np.float32)}, "out: "),
        ((X,), {"eps": -1.0}, "eps: expected a number of at least 0"),
        ((X,), {"eps": float("nan")}, "eps: expected a number of at least 0"),
        ((X,), {"threads": 5000}, "threads: "),
    ],
)
def test_bad_arguments(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.layer_norm(*arguments, **options)


def test_overlapping_arguments() -> None:
    memory = np.ones(20, np.float32)
    with pytest.raises(KernelError):
        kernels.layer_norm(memory[:12].reshape(3, 4), out=memory[2:14].reshape(3, 4))
    with pytest.raises(KernelError):
        kernels.layer_norm(memory[:12].reshape(3, 4), memory[12:16], out=memory[8:20].reshape(3, 4))


def test_a_plan_refuses_what_it_cannot_compute() -> None:
    with pytest.raises(KernelError, match="rows, size"):
        kernels.NormPlan(3, 0, eps=1e-5, centred=True)
    with pytest.raises(KernelError, match="addresses"):
        kernels.NormPlan(3, 4, eps=1e-5, centred=True).run("x", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_rounded_once(size: int, centred: bool) -> None:
    """The quotient rounds three times in float32, the product and the sum once each.

    Half the error of the variance comes on top: 11 EPS at worst, below 1 in what follows. Then the
    result is rounded. All operands are exact numbers.
    """
    random = np.random.default_rng(size)
    for rows in (1, 3):
        x, residual = (rounded(random.standard_normal((rows, size), np.float32)) for _ in range(2))
        scale, shift = (rounded(random.standard_normal(size, np.float32)) for _ in range(2))
        for added in (None, residual):
            out = np.full(x.shape, 0x7FC0, np.uint16)  # NaN
            rest: dict[str, Any] = {"residual": added, "eps": 1e-5, "out": out, "dtype": "bfloat16"}
            if centred:
                kernels.layer_norm(x, scale, shift, **rest)
            else:
                kernels.rms_norm(x, scale, **rest)
            total = value_of(x) + (0 if added is None else value_of(added))  # as float32
            product = normed(total.astype(np.float32), centred, 1e-5) * value_of(scale)
            wanted = product + value_of(shift) if centred else product
            plain = EPS * (5.5 * np.abs(product) + np.abs(wanted))
            bound = UNIT * np.abs(wanted) + (1 + UNIT) * plain
            assert (np.abs(value_of(out) - wanted) <= bound).all()


@pytest.mark.parametrize("centred", [True, False])
def test_bfloat16_over_its_whole_range(centred: bool) -> None:
    """Rows far from 1, of a mean that is large against the deviation, and of equal numbers."""
    random = np.random.default_rng(0)
    plain = random.standard_normal((8, 100), np.float32)
    for numbers in (plain * 5e37, plain * 1e-37, plain * 1e-30, 8 * plain + 1000, 0 * plain + 777):
        x = rounded(numbers.astype(np.float32))
        for eps in (0.0, 1e-5):
            if eps == 0.0 and np.unique(x).size == 1:
                continue  # 0 / 0
            out = np.full(x.shape, 0x7FC0, np.uint16)  # NaN
            if centred:
                kernels.layer_norm(x, eps=eps, out=out, dtype="bfloat16")
            else:
                kernels.rms_norm(x, eps=eps, out=out, dtype="bfloat16")
            wanted = normed(value_of(x), centred, eps)
            bound = (UNIT + 8 * EPS) * np.abs(wanted) + 2.0**-133
            assert (np.abs(value_of(out) - wanted) <= bound).all()


def check_bfloat16(x: Any, centred: bool, isa: str, residual: Any = None) -> None:
    """Compare with float64. The mean may be off by 2^-26 deviations."""
    before = kernels.isa()
    guard = np.full(x.size + 64, 0x7FC0, np.uint16)  # NaN
    out = guard[32 : 32 + x.size].reshape(x.shape)
    rest: dict[str, Any] = {"residual": residual, "eps": 1e-30, "out": out, "dtype": "bfloat16"}
    try:
        kernels.use_isa(isa)
        (kernels.layer_norm if centred else kernels.rms_norm)(x, **rest)
    finally:
        kernels.use_isa(before)
    assert (guard[:32] == 0x7FC0).all()
    assert (guard[32 + x.size :] == 0x7FC0).all()
    total = value_of(x) + (np.float32(0) if residual is None else value_of(residual))
    wanted = normed(total, centred, 1e-30)
    bound = (UNIT + 8 * EPS) * np.abs(wanted) + 2.0**-26
    assert (np.abs(value_of(out) - wanted) <= bound).all()


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("centred", [True, False])
def test_bfloat16_on_every_instruction_set(isa: str, centred: bool) -> None:
    random = np.random.default_rng(7)
    for size in (*SIZES, 47, 48, 63, 96, 255, 257, 2048):
        x, residual = (rounded(random.standard_normal((3, size), np.float32)) for _ in range(2))
        check_bfloat16(x, centred, isa)
        check_bfloat16(x, centred, isa, residual)


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("factor", [1e-22, 1e-3, 1.0, 1e3, 1e18, 1e20])
@pytest.mark.parametrize("first", [0.0, 1.0, 1000.0])
def test_first_elements_of_bfloat16_may_be_unlike_the_rest(
    isa: str, factor: float, first: float
) -> None:
    """The mean of the first elements is the first guess. The factors end where float32 does."""
    x = np.random.default_rng(8).standard_normal((4, 600), np.float32) + np.float32(40)
    x[:, :128] *= np.float32(first)
    x[:, 1] = -x[:, 0]
    check_bfloat16(rounded(x * np.float32(factor)), True, isa)


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("centre", [1.0, 1000.0, 1e6, 1e30])
def test_bfloat16_far_from_zero_costs_nothing(isa: str, centre: float) -> None:
    """The sum of x and the residual has all 24 bits of float32, and a deviation of a few units."""
    noise = np.random.default_rng(9).standard_normal((4, 500), np.float32)
    x = rounded(np.full_like(noise, centre))
    for deviation in (2.0**-18, 2.0**-8):
        residual = rounded(noise * np.float32(centre * deviation))
        check_bfloat16(x, True, isa, residual)


@pytest.mark.parametrize("isa", kernels.isas())
def test_bfloat16_that_is_no_number_stays_none(isa: str) -> None:
    """Whatever the payload: rounding must not carry it into infinity, nor into zero."""
    bad = [0x7F81, 0x7FC0, 0x7FFF, 0xFF81, 0xFFFF, 0x7F80, 0xFF80]
    random = np.random.default_rng(10)
    before = kernels.isa()
    try:
        kernels.use_isa(isa)
        for size in (100, 96):
            for bits in bad:
                x = rounded(random.standard_normal((3, size), np.float32))
                plain = np.array(kernels.layer_norm(x, dtype="bfloat16"))
                one = rounded(np.ones(size, np.float32))
                shift = 0 * one
                for at in (0, 1, size - 1):
                    row = x.copy()
                    row[1, at] = bits
                    out = kernels.layer_norm(row, dtype="bfloat16")
                    assert np.isnan(value_of(out)[1]).all()
                    np.testing.assert_array_equal(out[[0, 2]], plain[[0, 2]])
                    changed = one.copy()
                    changed[at] = bits
                    out = value_of(kernels.layer_norm(x, changed, shift, dtype="bfloat16"))
                    assert not np.isfinite(out[:, at]).any()
                    assert np.isnan(out[:, at]).all() == (bits & 0x7F != 0)
                    assert np.isfinite(np.delete(out, at, axis=1)).all()
    finally:
        kernels.use_isa(before)
