"""A step of LAMB against a float64 oracle, over the whole range of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float32 = NDArray[np.float32]
EPS = float(np.finfo(np.float32).eps) / 2
LARGEST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
BETAS = 0.9, 0.999
COUNTS = (1, 3, 16, 17, 1000, 16384, 16384 + 5, 5 * 16384 + 77)


def operands(
    count: int, x: float = 1.0, g: float = 1.0, m: float = 1.0, v: float = 1.0
) -> list[Float32]:
    rng = np.random.default_rng(count)
    drawn = [rng.standard_normal(count) * scale for scale in (x, g, m)]
    return [one.astype(np.float32) for one in (*drawn, rng.random(count) * v)]


def changed(x: Any, m: Any, v: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return u, its bound and the rate, in float64, from the moments that the kernel has written.

    The square root, the product, the sum, the quotient and the decay round: 4 roundings of the
    quotient, 3 of the sum. An operand or result below the normal numbers is off by LEAST.
    """
    t, (first, second) = options["step"], BETAS
    x, m, v = (one.astype(np.float64) for one in (x, m, v))
    short = 1 - first**t
    d = np.sqrt(v) * (short / np.sqrt(1 - second**t)) + short * options["eps"]
    decay = options["weight_decay"] * x
    with np.errstate(all="ignore"):
        u = m / d + decay
        bound = 8 * EPS * (np.abs(m / d) + np.abs(decay)) + LEAST * (3 + np.abs(m) / d**2)
        length, norm = np.sqrt((x * x).sum()), np.sqrt((u * u).sum())
        rate = options["lr"] * (length / norm if length and norm else 1.0)
    return u, bound, np.minimum(rate, LARGEST)  # NaN stays NaN


def check(arrays: list[Float32], maximize: bool = False, **given: Any) -> list[Float32]:
    """Compare one step with the oracle; return the four arrays after it."""
    options = {"step": 3, "lr": 0.01, "eps": 1e-6, "weight_decay": 0.01, **given}
    x, g, m, v = (one.astype(np.float64) for one in arrays)
    after = [one.copy() for one in arrays]
    kernels.lamb_step(*after, maximize=maximize, threads=2, **options)
    first, second = BETAS
    slope = -g if maximize else g
    wanted = first * m + (1 - first) * slope
    size = np.abs(first * m) + np.abs((1 - first) * g)
    assert (np.abs(after[2] - wanted) <= 4 * EPS * size + 2 * LEAST).all()
    wanted = np.minimum(second * v + (1 - second) * g * g, LARGEST)
    # A product below the normal numbers is off by LEAST, times the gradient that multiplies it.
    assert (np.abs(after[3] - wanted) <= 6 * EPS * wanted + LEAST * (2 + np.abs(g))).all()
    u, off, rate = changed(x, after[2], after[3], options)
    norm = np.sqrt((u * u).sum())
    off_rate = rate * (np.sqrt((off * off).sum()) / norm if norm else 0.0)
    off_rate += 4 * EPS * rate + LEAST
    wanted = x - rate * u
    bound = rate * off + np.abs(u) * off_rate
    bound += 2 * EPS * (np.abs(x) + np.abs(rate * u)) + 2 * LEAST
    assert (np.abs(after[0] - wanted) <= bound).all()
    assert np.array_equal(after[1], arrays[1]), "the gradient is only read"
    return after


@pytest.mark.parametrize("count", COUNTS)
def test_sizes(count: int) -> None:
    check(operands(count))
    check(operands(count), maximize=True, weight_decay=0.0, step=1000)


@pytest.mark.parametrize("g", [0.0, 1e-44, 1e-38, 1e-20, 1.0, 1e18, 1e30, 1e37])
@pytest.mark.parametrize("x", [0.0, 1e-44, 1e-38, 1.0, 1e20, 1e37])
def test_the_whole_range_of_finite_numbers(x: float, g: float) -> None:
    with np.errstate(over="ignore"):
        square = min(g * g, 1e37)
    after = check(operands(1000, x, g, g, square))
    assert all(np.isfinite(one).all() for one in after)


def test_a_norm_of_zero_makes_the_learning_rate_the_factor() -> None:
    arrays = operands(100, x=0.0)
    after = check(arrays, weight_decay=0.0)
    assert np.abs(after[0]).max() > 0.0
    still = operands(100, g=0.0, m=0.0, v=0.0)
    assert np.array_equal(check(still, weight_decay=0.0)[0], still[0])


@pytest.mark.parametrize("place", [0, 15, 16, 16384, -1])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["param", "grad", "exp_avg"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_tensor_as_in_float64(
    place: int, which: int, value: float
) -> None:
    arrays = operands(16384 + 9)
    arrays[which][place] = value
    after = [one.copy() for one in arrays]
    kernels.lamb_step(*after, step=3)
    with np.errstate(all="ignore"):
        m = 0.9 * arrays[2].astype(np.float64) + 0.1 * arrays[1]
    assert np.array_equal(np.isnan(after[2]), np.isnan(m))
    assert np.array_equal(np.isinf(after[2]), np.isinf(m))
    options = {"step": 3, "lr": 1e-3, "eps": 1e-6, "weight_decay": 1e-2}
    with np.errstate(all="ignore"):
        u, _, rate = changed(arrays[0].astype(np.float64), after[2], after[3], options)
        wanted = arrays[0] - np.float32(rate) * u.astype(np.float32)
    assert np.array_equal(np.isnan(after[0]), np.isnan(wanted))
    assert np.array_equal(np.isinf(after[0]), np.isinf(wanted))


def test_without_eps_the_lanes_behind_the_end_do_not_count() -> None:
    check(operands(17), eps=0.0)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    arrays = operands(5 * 16384 + 77)
    results = []
    for threads in (1, 2, 3):
        after = [one.copy() for one in arrays]
        kernels.lamb_step(*after, step=2, threads=threads)
        results.append(after)
    for other in results[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_nothing_is_written_beside_the_arrays() -> None:
    room = [np.full(64 + 33, 7.25, np.float32) for _ in range(4)]
    views = [one[32 : 32 + 33] for one in room]
    for view, values in zip(views, operands(33), strict=True):
        view[:] = values
    kernels.lamb_step(*views, step=1)
    for one in room:
        assert (one[:32] == 7.25).all()
        assert (one[65:] == 7.25).all()


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("step: expected at least 1; got 0", {"step": 0}),
        ("step: expected an integer", {"step": 1.5}),
        (r"betas\[0\]: expected 0 <= beta < 1; got 1.0", {"betas": (1.0, 0.9)}),
        (r"betas\[1\]: expected 0 <= beta < 1; got nan", {"betas": (0.9, float("nan"))}),
        ("lr: expected a number of at least 0; got -1", {"lr": -1.0}),
        ("eps: expected a number of at least 0; got nan", {"eps": float("nan")}),
        ("weight_decay: expected a number of at least 0", {"weight_decay": -1.0}),
        ("threads: expected 1 to 4096", {"threads": 5000}),
    ],
)
def test_bad_options_are_refused(message: str, options: dict[str, Any]) -> None:
    arrays = operands(5)
    before = [one.copy() for one in arrays]
    with pytest.raises(KernelError, match=message):
        kernels.lamb_step(*arrays, **{"step": 1, **options})
    assert all(np.array_equal(one, two) for one, two in zip(arrays, before, strict=True))


def test_bad_arrays_are_refused_by_name() -> None:
    x, g, m, v = operands(6)
    with pytest.raises(KernelError, match="grad"):
        kernels.lamb_step(x, g[:5], m, v, step=1)
    with pytest.raises(KernelError, match="exp_avg_sq"):
        kernels.lamb_step(x, g, m, v.astype(np.float64), step=1)
    with pytest.raises(KernelError, match=r"(?s)exp_avg.*grad"):
        kernels.lamb_step(x, g, g, v, step=1)
    with pytest.raises(KernelError, match="param"):
        kernels.lamb_step(x[::2], g[::2], m[::2], v[::2], step=1)
