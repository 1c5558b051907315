"""Softmax along any axis against float64."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import address, guarded
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import SoftmaxPlan

EPS = 2.0**-24
SHAPES = (
    (1, 1, 1),
    (3, 1, 5),
    (5, 7, 1),
    (4, 128, 1),
    (3, 1001, 1),
    (200, 133, 1),
    (2, 5, 3),
    (1, 19, 65),
    (3, 4, 100),
    (2, 300, 70),
    (1, 2100, 19),  # more than the stack keeps
)


def reference(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the softmax along the middle axis, and a bound of the error.

    An exponential errs by 5 units, and by a unit of its argument, of which the rounding is relative
    to the distance from the largest. The sum has the mean of these errors, and those of its
    additions; a quotient and a product add 2.
    """
    apart = x.astype(np.float64) - x.max(1, keepdims=True)
    powers = np.exp(apart)
    y = powers / powers.sum(1, keepdims=True)
    own = 5 - apart
    additions = x.shape[1] / 4 + 6
    return y, EPS * y * (own + (y * own).sum(1, keepdims=True) + additions + 2) + 2e-38


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax(shape: tuple[int, int, int], scale: float) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(scale)
    right, bound = reference(x)
    plan = SoftmaxPlan(*shape)
    with guarded(*shape) as y:
        plan.run(address(x), address(y))
        assert (np.abs(y - right) <= bound).all()
        again = x.copy()
        plan.run(address(again), address(again))
        np.testing.assert_array_equal(again, y)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(3, 21, 1), (2, 21, 11)], ids=str)
def test_what_is_no_number_stays_in_its_row(bad: float, shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    plan = SoftmaxPlan(*shape)
    for at in (0, 20):
        changed = x.copy()
        changed[1, at, -1] = bad
        with guarded(*shape) as y:
            plan.run(address(changed), address(y))
            row = y[1, :, -1].copy()
            assert np.isnan(row).all() if bad != -np.inf else row[at] == 0
            y[1, :, -1] = 0
            assert np.isfinite(y).all()


@pytest.mark.parametrize("shape", [(2, 21, 1), (2, 21, 11)], ids=str)
def test_a_row_of_minus_infinity_has_no_softmax(shape: tuple[int, int, int]) -> None:
    x = np.zeros(shape, np.float32)
    x[0, :, 0] = -np.inf
    with guarded(*shape) as y:
        SoftmaxPlan(*shape).run(address(x), address(y))
        assert np.isnan(y[0, :, 0]).all()
        y[0, :, 0] = 0
        assert np.isfinite(y).all()


def test_invalid_plans() -> None:
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 2**41)):
        with pytest.raises(KernelError, match="outer, size, inner: expected"):
            SoftmaxPlan(*numbers)


def test_a_plan_takes_no_more_addresses_than_a_call_has() -> None:
    plan = SoftmaxPlan(1, 2).runnable()
    with pytest.raises(KernelError, match="at most 8 operands and 8 results"):
        plan.run(range(1, 10), (1,))
    with pytest.raises(TypeError):
        plan.run(("x",), (1,))  # type: ignore[arg-type]
