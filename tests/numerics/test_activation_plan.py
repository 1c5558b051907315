"""GELU, SiLU and their gradients against float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from guarded import address, guarded
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import ActivationPlan
from bestof.kernels.activation import ACTIVATIONS

EPS = 2.0**-24
SIZES = (0, 1, 3, 7, 8, 9, 31, 33, 8191, 8192, 40001)

BOUNDS = {"gelu": (4, 7), "gelu_tanh": (5, 14), "silu": (5, 11)}
"""Errors of the activation and of its gradient in units of float32.

An exponential errs by 5 units, a quotient and a product by 1. The derivative of a logistic function
is at most a quarter, so a unit of its argument, of which the product with it is at most 0.23, adds
less than one. The polynomial of GELU errs by 3 units of probability 1.
"""

Float64 = NDArray[np.float64]


def logistic(v: Float64) -> Float64:
    e = np.exp(-np.abs(v))
    return np.where(v < 0, e, 1.0) / (1 + e)


def reference(activation: str, x: Float64) -> tuple[Float64, Float64]:
    """Return the activation and its derivative."""
    if activation == "gelu":
        below = np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in x.ravel()])
        below = below.reshape(x.shape)
        return x * below, below + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    if activation == "silu":
        s = logistic(x)
        return x * s, s + x * s * logistic(-x)
    beta, kappa = math.sqrt(2 / math.pi), 0.044715
    rise = 2 * beta * (x + kappa * x**3)
    s = logistic(rise)
    return x * s, s + x * s * logistic(-rise) * 2 * beta * (1 + 3 * kappa * x * x)


def numbers(size: int, seed: int = 0) -> NDArray[np.float32]:
    """Return numbers of all magnitudes up to a million, of which the most are small."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(size).astype(np.float32) * np.float32(3)
    x[::7] *= np.float32(10)
    x[::97] *= np.float32(1e5)
    return x


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_both_passes(activation: str, size: int) -> None:
    x, gradient = numbers(size), np.random.default_rng(1).standard_normal(size, np.float32)
    value, slope = reference(activation, x.astype(np.float64))
    forward, backward = BOUNDS[activation]
    plan = ActivationPlan(size, activation)
    with guarded(size) as y, guarded(size) as dx:
        plan.run(address(x), address(y))
        plan.run_backward(address(gradient), address(x), address(dx))
        assert (np.abs(y - value) <= forward * EPS * np.abs(x)).all()
        assert (np.abs(dx - gradient * slope) <= backward * EPS * np.abs(gradient)).all()
        again, same = x.copy(), gradient.copy()
        plan.run_backward(address(same), address(x), address(same))
        plan.run(address(again), address(again))
        np.testing.assert_array_equal(again, y)
        np.testing.assert_array_equal(same, dx)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_rounded_once(activation: str, size: int) -> None:
    x = rounded(numbers(size))
    gradient = rounded(np.random.default_rng(2).standard_normal(size, np.float32))
    value, slope = reference(activation, value_of(x).astype(np.float64))
    plan = ActivationPlan(size, activation, dtype="bfloat16")
    forward, backward = BOUNDS[activation]
    with guarded(size, dtype=np.uint16) as y, guarded(size, dtype=np.uint16) as dx:
        plan.run(address(x), address(y))
        plan.run_backward(address(gradient), address(x), address(dx))
        for got, right, terms, bound in (
            (y, value, value_of(x), forward),
            (dx, value_of(gradient) * slope, value_of(gradient), backward),
        ):
            allowed = UNIT * np.abs(right) + (1 + UNIT) * bound * EPS * np.abs(terms)
            assert (np.abs(value_of(got) - right) <= allowed).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("place", [0, 5, 16])
def test_not_a_number_stays_at_its_place(activation: str, place: int) -> None:
    for bad, value in ((np.nan, np.nan), (-np.inf, np.nan), (np.inf, np.inf)):
        x, gradient = numbers(17), np.ones(17, np.float32)
        x[place] = bad
        plan = ActivationPlan(17, activation)
        with guarded(17) as y, guarded(17) as dx:
            plan.run(address(x), address(y))
            plan.run_backward(address(gradient), address(x), address(dx))
            np.testing.assert_equal(y[place], np.float32(value))
            assert np.isnan(dx[place])
            assert np.isfinite(np.delete(y, place)).all()
            assert np.isfinite(np.delete(dx, place)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_numbers_give_nothing_or_themselves(activation: str) -> None:
    x = np.array([1e4, 1e10, 1e18, -1e4, -1e10, -1e18], np.float32)
    with guarded(6) as y:
        ActivationPlan(6, activation).run(address(x), address(y))
        np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, "gelu"), "count: expected"),
        (("many", "gelu"), "count: expected an integer"),
        ((4, "relu"), "activation: expected one of gelu, gelu_tanh, silu"),
        ((4, "gelu", "float16"), "dtype: expected"),
    ],
)
def test_invalid_plans(arguments: Any, said: str) -> None:
    with pytest.raises(KernelError, match=said):
        ActivationPlan(*arguments[:2], dtype=(*arguments, "float32")[2])
