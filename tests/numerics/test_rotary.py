"""Rotary position embedding against float64."""

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
SIZES = (2, 6, 30, 32, 34, 64, 96, 128, 130)
SHAPE = (2, 3, 5)


def terms(x: Any, cos: Any, sin: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the two products of each element, exactly."""
    x, cos, sin = (one.astype(np.float64) for one in (x, cos, sin))
    first, second = np.split(x, 2, -1)
    return x * cos, np.concatenate((-second, first), -1) * sin


def check(x: Float32, cos: Float32, sin: Float32, **rest: Any) -> Float32:
    """Compare with float64: both products round, and their sum does."""
    guard = np.full(x.size + 64, np.nan, np.float32)
    out = guard[32 : 32 + x.size].reshape(x.shape)
    kernels.rotary(x, cos, sin, out=out, **rest)
    assert np.isnan(guard[:32]).all()
    assert np.isnan(guard[32 + x.size :]).all()
    with np.errstate(invalid="ignore"):
        one, other = terms(x, cos, sin)
        wanted = one + other
    bound = EPS * (1 + EPS) * (np.abs(one) + np.abs(other) + np.abs(wanted)) + 2 * LEAST
    right = np.isfinite(wanted)
    assert (np.abs(out[right] - wanted[right]) <= bound[right]).all()
    assert (np.isnan(out) == np.isnan(wanted)).all()
    return out


def operands(size: int, seed: int = 0) -> tuple[Float32, Float32, Float32]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((*SHAPE, size), np.float32)
    angles = random.uniform(-9, 9, (SHAPE[2], size)).astype(np.float32)
    return x, np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: int, isa: str) -> None:
    before = kernels.isa()
    try:
        kernels.use_isa(isa)
        check(*operands(size))
    finally:
        kernels.use_isa(before)


def turned_axes(x: Float32) -> Float32:
    """The same values; the heads of a token side by side, among other numbers."""
    memory = np.full((SHAPE[0], SHAPE[2], SHAPE[1], x.shape[-1] + 3), np.nan, np.float32)
    view = memory.transpose(0, 2, 1, 3)[..., 1:-2]
    view[...] = x
    return view


@pytest.mark.parametrize(
    "table", [(5,), (1, 1), (1, 1, 5), (2, 1, 5), (2, 3, 5), (1, 3, 1)], ids=str
)
@pytest.mark.parametrize("size", [6, 64])
def test_strides_and_broadcasts(size: int, table: tuple[int, ...]) -> None:
    x, _, _ = operands(size)
    random = np.random.default_rng(1)
    cos, sin = (random.standard_normal((*table, size), np.float32) for _ in range(2))
    wanted = check(x, *(np.broadcast_to(one, x.shape).copy() for one in (cos, sin)))
    np.testing.assert_array_equal(check(turned_axes(x), cos, sin), wanted)
    wide = np.full((*table, size + 2), np.nan, np.float32)
    wide[..., 1:-1] = cos
    np.testing.assert_array_equal(check(x, wide[..., 1:-1], sin), wanted)


def test_what_is_not_finite_stays_with_its_partner() -> None:
    x, cos, sin = operands(34)
    x[1, 2, 3, 20], x[0, 1, 2, 4] = np.nan, np.inf
    out = check(x, cos, sin)
    assert not np.isfinite(out[1, 2, 3, [3, 20]]).any()
    assert not np.isfinite(out[0, 1, 2, [4, 21]]).any()
    assert np.isfinite(out).sum() == out.size - 4


@pytest.mark.parametrize("scale", [1e-44, 1e-20, 1e18])
def test_tiny_and_huge_values(scale: float) -> None:
    x, cos, sin = operands(64)
    check((x * scale).astype(np.float32), cos, sin)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((3, 5, 70, 64), np.float32)
    cos, sin = (random.standard_normal((70, 64), np.float32) for _ in range(2))
    one = check(x, cos, sin, threads=1)
    np.testing.assert_array_equal(check(x, cos, sin, threads=threads), one)


@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_rounded_once(size: int, isa: str) -> None:
    x, cos, sin = (rounded(one) for one in operands(size))
    out = np.full(x.shape, 0x7FC0, np.uint16)  # NaN
    before = kernels.isa()
    try:
        kernels.use_isa(isa)
        kernels.rotary(x, cos, sin, out=out, dtype="bfloat16")
    finally:
        kernels.use_isa(before)
    one, other = terms(*map(value_of, (x, cos, sin)))
    wanted = one + other
    plain = EPS * (1 + EPS) * (np.abs(one) + np.abs(other) + np.abs(wanted))
    assert (np.abs(value_of(out) - wanted) <= UNIT * np.abs(wanted) + (1 + UNIT) * plain).all()


def test_no_tokens() -> None:
    none = np.ones((2, 3, 0, 8), np.float32)
    assert kernels.rotary(none, np.ones((0, 8), np.float32), np.ones((1, 8), np.float32)).size == 0


X, TABLE = np.ones((2, 3, 5, 8), np.float32), np.ones((5, 8), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X[0], TABLE, TABLE), {}, "x: expected shape"),
        ((X[..., :7], TABLE[:, :7], TABLE[:, :7]), {}, "x: expected shape .* even"),
        ((X[..., ::2], TABLE[:, :4], TABLE[:, :4]), {}, "x: expected the numbers of a token"),
        ((X, TABLE[:4], TABLE), {}, "cos: expected a shape that broadcasts"),
        ((X, TABLE, TABLE[:, :1]), {}, "sin: expected a shape that broadcasts"),
        ((X, TABLE, np.ones((5, 16), np.float32)[:, ::2]), {}, "sin: expected the numbers"),
        ((X, TABLE, np.ones((1, *X.shape), np.float32)), {}, "sin: expected a shape"),
        ((X, np.ones((), np.float32), TABLE), {}, "cos: expected a shape"),
        ((X.astype(np.float64), TABLE, TABLE), {}, "x: "),
        ((X, TABLE.astype(np.float64), TABLE), {}, "cos: "),
        ((X, TABLE, TABLE), {"out": np.ones((2, 3, 5, 6), np.float32)}, "out: "),
        ((X, TABLE, TABLE), {"out": X}, "out: "),
        ((X, TABLE, TABLE), {"threads": 5000}, "threads: "),
    ],
)
def test_bad_arguments(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.rotary(*arguments, **options)


def test_a_plan_refuses_what_it_cannot_compute() -> None:
    shapes, strides = (X.shape, TABLE.shape, TABLE.shape), ((120, 40, 8, 1), (8, 1), (8, 1))
    with pytest.raises(KernelError, match="one for each of x, cos, sin"):
        kernels.RotaryPlan(shapes[:2], strides[:2])
    with pytest.raises(KernelError, match="cos: expected as many strides"):
        kernels.RotaryPlan(shapes, (strides[0], (1,), strides[2]))
    with pytest.raises(KernelError, match="addresses"):
        kernels.RotaryPlan(shapes, strides).run("x", 0, 0, 0)  # type: ignore[arg-type]
    out = np.full(X.shape, np.nan, np.float32)
    plan = kernels.RotaryPlan(shapes, strides, threads=1)
    plan.run(X.ctypes.data, TABLE.ctypes.data, TABLE.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out, kernels.rotary(X, TABLE, TABLE))
