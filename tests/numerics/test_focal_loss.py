"""Focal loss against a float64 oracle, whose gradient is checked by differences of its loss."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float64 = NDArray[np.float64]
EPSILON = float(np.finfo(np.float32).eps) / 2
GAMMAS = (0.0, 1.0, 2.0, 0.5, 2.5)
SHAPES = ((0,), (1,), (3, 17), (2, 5, 91), (1023,), (3, 16384 + 7))


def _class_weight(y: Float64, alpha: float) -> Float64:
    return alpha * y + (1 - alpha) * (1 - y) if alpha >= 0 else np.ones_like(y)


def _oracle(
    x: NDArray[np.float32], y: NDArray[np.float32], alpha: float, gamma: float
) -> tuple[Float64, Float64]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    p, q = np.exp(-np.logaddexp(0, -x)), np.exp(-np.logaddexp(0, x))
    ce = (1 - y) * np.logaddexp(0, x) + y * np.logaddexp(0, -x)
    om = p * (1 - y) + q * y
    weight = _class_weight(y, alpha)
    return weight * om**gamma * ce, weight * (
        gamma * om ** (gamma - 1) * (1 - 2 * y) * p * q * ce + om**gamma * (p * (1 - y) - q * y)
    )


def _operands(
    shape: tuple[int, ...], targets: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * rng.choice([0.01, 1, 8], shape)).astype(np.float32)
    soft = rng.random(shape, dtype=np.float32)
    if targets == "soft":
        return x, soft
    hard = (soft < 0.1).astype(np.float32)
    return x, hard if targets == "hard" else np.where(rng.random(shape) < 0.02, soft, hard)


def _relative_error(gamma: float, x: NDArray[np.float32]) -> Float64:
    """The bound, element by element, of sums and products of positive terms.

    exp(-|x|) is within 3e-7 and one rounding, and enters q^gamma, p and ce; log(1 + e) is within
    2e-7; about 16 more operations round. A power by logarithms also multiplies the error of log q,
    eps * |log q|, by gamma.
    """
    log_q = np.maximum(np.abs(x), 1).astype(np.float64)
    return (gamma + 2) * (3e-7 + 2 * EPSILON) + 2e-7 + (16 + gamma * log_q) * EPSILON


def _size_of_gradient(
    x: NDArray[np.float32], y: NDArray[np.float32], alpha: float, gamma: float
) -> Float64:
    """The magnitudes of its terms, summed."""
    p = np.exp(-np.logaddexp(0, -x.astype(np.float64)))
    om, ce = p * (1 - y) + (1 - p) * y, _oracle(x, y, -1.0, 0.0)[0]
    return (
        _class_weight(y.astype(np.float64), alpha)
        * om**gamma
        * (om + gamma / om * p * (1 - p) * ce)
    )


@pytest.mark.long(every=5)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("targets", ["hard", "soft", "mixed"])
@pytest.mark.parametrize("alpha", [0.25, -1.0])
def test_loss_and_gradient(
    shape: tuple[int, ...], gamma: float, targets: str, alpha: float
) -> None:
    x, y = _operands(shape, targets)
    wanted, slope = _oracle(x, y, alpha, gamma)
    whole = np.full(x.size + 128, np.nan, np.float32)
    whole[:64] = whole[-64:] = 12345.0
    gradient = whole[64 : 64 + x.size].reshape(shape)
    loss, same = kernels.focal_loss(
        x, y, alpha=alpha, gamma=gamma, reduction="none", gradient=gradient, threads=2
    )
    assert same is gradient
    assert (np.concatenate([whole[:64], whole[-64:]]) == 12345.0).all()
    bound = _relative_error(gamma, x)
    assert (np.abs(loss - wanted) <= bound * wanted + np.finfo(np.float32).tiny).all()
    # Between 0 and 1 the gradient is a sum of terms of both signs; at 0 and 1 they have one sign.
    size = np.abs(slope) if targets == "hard" else _size_of_gradient(x, y, alpha, gamma)
    assert (np.abs(gradient - slope) <= bound * size + np.finfo(np.float32).tiny).all()
    total, _ = kernels.focal_loss(x, y, alpha=alpha, gamma=gamma, scale=0.5)
    assert total == pytest.approx(0.5 * wanted.sum(), rel=float(bound.max(initial=0)) + 1e-6, abs=0)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_oracle_differentiates_its_loss(gamma: float) -> None:
    x, y = _operands((3, 17), "mixed")
    step = 2.0**-12
    near = [(x + sign * step).astype(np.float64) for sign in (1, -1)]
    ends = [_oracle(one, y, 0.25, gamma)[0] for one in near]  # type: ignore[arg-type]
    np.testing.assert_allclose(
        (ends[0] - ends[1]) / (2 * step), _oracle(x, y, 0.25, gamma)[1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("gamma", GAMMAS)
def test_large_logits_stay_finite(gamma: float) -> None:
    x = np.array([44.0, 88.0, 89.0, 104.0, 1e4, 1e30, 3e38, 0.0], np.float32)
    x = np.concatenate([x, -x])
    for target in (0.0, 1.0, 0.5):
        y = np.full_like(x, target)
        loss, gradient = kernels.focal_loss(x, y, alpha=None, gamma=gamma, reduction="none")
        z = x.astype(np.float64) * (1 - 2 * target)
        assert np.isfinite(loss).all()
        assert np.isfinite(gradient).all()
        if target != 0.5:
            # Far on the wrong side the loss is the distance, with slope 1. Far on the right side
            # both are 0.
            np.testing.assert_allclose(loss[z > 80], z[z > 80], rtol=1e-6)
            np.testing.assert_allclose(gradient[z > 80], 1 - 2 * target, rtol=1e-6)
            assert (np.abs(loss[z < -80]) < 1e-30).all()
            assert (np.abs(gradient[z < -80]) < 1e-30).all()


def test_infinite_logits_and_nan() -> None:
    x = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan, 1.0], np.float32)
    y = np.array([1, 0, 0, 1, 1, 1], np.float32)
    loss, gradient = kernels.focal_loss(x, y, alpha=None, reduction="none")
    np.testing.assert_array_equal(loss[:5], np.array([0, 0, np.inf, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(np.abs(gradient[:5]), np.array([0, 0, 1, 1, np.nan], np.float32))
    assert gradient[5] < 0 < loss[5]


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 1.5])
@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_nan_with_any_payload_stays_nan(gamma: float, target: float) -> None:
    bits = np.random.default_rng(3).integers(1, 1 << 23, 400).astype(np.uint32)
    signs = np.arange(400, dtype=np.uint32) % 2 << np.uint32(31)
    x = (bits | np.uint32(0x7F800000) | signs).view(np.float32)
    y = np.full_like(x, target)
    loss, gradient = kernels.focal_loss(x, y, gamma=gamma, reduction="none")
    assert np.isnan(loss).all()
    assert np.isnan(gradient).all()


def test_the_result_does_not_depend_on_the_threads() -> None:
    x, y = _operands((7, 16384), "mixed")
    one, two = (kernels.focal_loss(x, y, threads=threads) for threads in (1, 2))
    assert one.loss == two.loss
    np.testing.assert_array_equal(one.gradient, two.gradient)


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("targets: expected shape", {"targets": np.ones((3, 2), np.float32)}),
        ("targets: expected float32", {"targets": np.ones((2, 3), np.int64)}),
        ("x: expected an array", {"x": 3.0}),
        ("gamma: expected a finite number", {"gamma": -1.0}),
        ("gamma: expected a finite number", {"gamma": float("nan")}),
        ("gamma: expected a number", {"gamma": "two"}),
        ("alpha: expected at most 1", {"alpha": 2.0}),
        ("scale: expected a finite", {"scale": float("inf")}),
        ("reduction: expected sum or none", {"reduction": "mean"}),
        ("threads: expected", {"threads": -1}),
        ("gradient: expected shape", {"gradient": np.ones(6, np.float32)}),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(
    message: str, change: dict[str, object]
) -> None:
    gradient = np.full((2, 3), np.nan, np.float32)
    arguments = {"x": ONES, "targets": ONES, "gradient": gradient, **change}
    with pytest.raises(KernelError, match=message):
        kernels.focal_loss(**arguments)  # type: ignore[arg-type]
    assert np.isnan(gradient).all()


def test_the_gradient_must_be_apart() -> None:
    x = ONES.copy()
    with pytest.raises(KernelError, match="gradient: expected memory of its own; it overlaps x"):
        kernels.focal_loss(x, ONES, gradient=x)
