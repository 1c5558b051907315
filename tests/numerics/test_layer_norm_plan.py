"""Layer norm with its statistics, and its gradients, against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from guarded import address, guarded
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import LayerNormPlan

EPS = 2.0**-24
SHAPES = ((1, 1), (2, 3), (3, 8), (5, 31), (7, 77), (4, 512), (6, 1027), (131, 300), (65, 768))


def random(rows: int, size: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, size), np.float32)


def check_forward(
    x: NDArray[np.float32],
    scale: NDArray[np.float32] | None,
    shift: NDArray[np.float32] | None,
    eps: float = 1e-5,
) -> None:
    """Compare with float64.

    A sum of float32 has 32 additions in a lane and 5 between lanes, of differences that are rounded
    once. The second moment is at most twice the variance, because the centre is near the mean. So
    the mean errs by 38 * 1.42 units of a deviation, the variance by 2 * 39 units, and 1 / deviation
    by 40. The quotient has three more roundings.
    """
    rows, size = x.shape
    wide = x.astype(np.float64)
    mean, variance = wide.mean(1, keepdims=True), wide.var(1, keepdims=True)
    rstd = 1 / np.sqrt(variance + eps)
    normed = (wide - mean) * rstd
    factor = np.ones(size) if scale is None else scale.astype(np.float64)
    right = normed * factor + (0 if shift is None else shift)
    with guarded(rows, size) as y, guarded(rows, 1) as mu, guarded(rows, 1) as sigma:
        LayerNormPlan(rows, size, eps=eps).run(
            *map(address, (x, scale, shift, y, mu, sigma)),
        )
        of_mean = 55 * np.sqrt(variance)
        assert (np.abs(mu - mean) <= EPS * (of_mean + np.abs(mean)) + 1e-37).all()
        assert (np.abs(sigma - rstd) <= EPS * 41 * rstd).all()
        own = (46 * np.abs(normed) + 57) * np.abs(factor)
        assert (np.abs(y - right) <= EPS * (own + 2 * np.abs(right))).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape: tuple[int, int]) -> None:
    x, weights = random(*shape), random(2, shape[1], 1)
    for scaled, shifted in product((False, True), repeat=2):
        check_forward(x * 3 + 1, weights[0] if scaled else None, weights[1] if shifted else None)


@pytest.mark.parametrize("centre", [100.0, -1e4, 1e6])
@pytest.mark.parametrize("first", [0.0, 1.0, 300.0])
def test_rows_far_from_zero(centre: float, first: float) -> None:
    """The mean of the first numbers is the first guess of the mean."""
    x = random(5, 600)
    x[:, :40] *= np.float32(first)
    check_forward(x + np.float32(centre), None, None, 1e-12)


def test_equal_numbers() -> None:
    x = np.full((3, 100), 12345.678, np.float32)
    with guarded(3, 100) as y, guarded(3, 1) as mean, guarded(3, 1) as rstd:
        LayerNormPlan(3, 100, eps=1e-5).run(address(x), 0, 0, *map(address, (y, mean, rstd)))
        assert (y == 0).all()
        assert (mean == x[0, 0]).all()
        np.testing.assert_allclose(rstd, 1e5**0.5, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_what_is_no_number_stays_in_its_row(bad: float, place: int) -> None:
    x, gradient = random(9, 100), random(9, 100, 1)
    x[4, place] = bad
    plan = LayerNormPlan(9, 100, eps=1e-5)
    with (
        guarded(9, 100) as y,
        guarded(9, 1) as mean,
        guarded(9, 1) as rstd,
        guarded(9, 100) as dx,
    ):
        plan.run(address(x), 0, 0, *map(address, (y, mean, rstd)))
        plan.run_backward(*map(address, (gradient, x, mean, rstd, None, dx, None, None)))
        for one in (y, dx):
            assert np.isnan(one[4]).all()
            assert np.isfinite(np.delete(one, 4, axis=0)).all()


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(shape: tuple[int, int], scaled: bool) -> None:
    """The sums of a row err by 39 units of their terms. Those over rows have an addition a row."""
    rows, size = shape
    x, gradient, scale = random(*shape) * 2 + 1, random(*shape, 1), random(1, size, 2)[0]
    mean = x.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))
    normed = (x.astype(np.float64) - mean) * rstd
    g = gradient.astype(np.float64) * (scale if scaled else 1)
    of_shift, of_scale = gradient.astype(np.float64), gradient * normed
    terms = g, g.mean(1, keepdims=True), normed * (g * normed).mean(1, keepdims=True)
    right = rstd * (terms[0] - terms[1] - terms[2])
    size_of_terms = (
        np.abs(g)
        + np.abs(g).mean(1, keepdims=True)
        + np.abs(normed) * np.abs(g * normed).mean(1, keepdims=True)
    )
    plan = LayerNormPlan(rows, size, eps=1e-5)
    for wanted in product((False, True), repeat=3):
        if not any(wanted):
            continue
        with guarded(rows, size) as dx, guarded(size) as ds, guarded(size) as db:
            results = [
                one if take else None for one, take in zip((dx, ds, db), wanted, strict=True)
            ]
            operands = gradient, x, mean, rstd, scale if scaled else None
            plan.run_backward(*map(address, (*operands, *results)))
            if wanted[0]:
                assert (np.abs(dx - right) <= 48 * EPS * rstd * size_of_terms).all()
            for one, parts, take in ((ds, of_scale, wanted[1]), (db, of_shift, wanted[2])):
                if take:
                    bound = (rows + 4) * EPS * np.abs(parts).sum(0)
                    assert (np.abs(one - parts.sum(0)) <= bound).all()
                else:
                    assert np.isnan(one).all()


def test_invalid_plans() -> None:
    with pytest.raises(KernelError, match="rows, size: expected"):
        LayerNormPlan(0, 4, eps=1e-5)
    with pytest.raises(KernelError, match="eps: expected"):
        LayerNormPlan(4, 4, eps=-1.0)
