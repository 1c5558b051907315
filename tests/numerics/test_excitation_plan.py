"""Squeeze-and-excitation against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fenced_memory import at_the_end
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

EPS = 2.0**-23
Float64 = NDArray[np.float64]

# (N, H, W, C), hidden channels: whole vectors and parts of them, shared by threads where there are
# several, one pixel, one channel, long sums, several images.
CASES = (
    ((1, 14, 14, 96), 24),
    ((2, 7, 7, 64), 16),
    ((3, 30, 29, 40), 10),
    ((1, 112, 112, 3), 1),
    ((2, 5, 3, 17), 33),
    ((1, 1, 1, 1), 1),
    ((1, 2, 2, 300), 75),
)


def _operands(shape: tuple[int, ...], hidden: int) -> dict[str, NDArray[np.float32]]:
    rng, channels = np.random.default_rng(11), shape[3]

    def normal(*extents: int) -> NDArray[np.float32]:
        return at_the_end(rng.standard_normal(extents, dtype=np.float32))

    return {
        "x": normal(*shape),
        "squeeze": normal(hidden, channels),
        "squeeze_bias": normal(hidden),
        "excite": normal(channels, hidden),
        "excite_bias": normal(channels),
        "residual": normal(*shape),
    }


def _oracle(given: dict[str, Any], hard: bool) -> tuple[Float64, Float64]:
    """Return x * gate + residual with ReLU inside, and a bound of the error of each element."""
    one = {name: value.astype(np.float64) for name, value in given.items()}
    size = {name: np.abs(value) for name, value in one.items()}
    hidden, channels = one["squeeze"].shape
    pixels = one["x"].shape[1] * one["x"].shape[2]
    mean, means = one["x"].mean((1, 2)), size["x"].mean((1, 2))
    inner = np.maximum(mean @ one["squeeze"].T + one["squeeze_bias"], 0)
    v = inner @ one["excite"].T + one["excite_bias"]
    gate = np.clip(v + 3, 0, 6) / 6 if hard else 1 / (1 + np.exp(-v))
    # A sum of n terms errs by n units of the sum of magnitudes at most; chains of 64 pixels.
    off_mean = EPS * (min(pixels, 64) + pixels / 64 + 8) * means
    off_inner = off_mean @ size["squeeze"].T
    off_inner += EPS * (channels + 2) * (means @ size["squeeze"].T + size["squeeze_bias"])
    off_v = off_inner @ size["excite"].T
    off_v += EPS * (hidden + 2) * (inner @ size["excite"].T + size["excite_bias"])
    # The slope of the gate is 1/4 at most. The exponential errs by 3e-7.
    off_gate = (off_v / 4 + 8 * EPS)[:, None, None]
    wanted = one["x"] * gate[:, None, None] + one["residual"]
    return wanted, size["x"] * off_gate + 2 * EPS * (size["x"] + size["residual"])


def _run(given: dict[str, Any], out: NDArray[np.float32], **options: Any) -> None:
    plan = kernels.ExcitationPlan(given["x"].shape, len(given["squeeze"]), **options)
    names = "x", "squeeze", "squeeze_bias", "excite", "excite_bias", "residual"
    addresses = [given[one].ctypes.data if one in given else 0 for one in names]
    plan.run(addresses, out.ctypes.data)


@pytest.mark.parametrize("hard", [False, True], ids=["sigmoid", "hard"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_the_bound(case: tuple[tuple[int, ...], int], hard: bool) -> None:
    shape, hidden = case
    given = _operands(shape, hidden)
    wanted, bound = _oracle(given, hard)
    whole = np.full(wanted.size + 128, np.nan, np.float32)
    whole[:64] = whole[-64:] = 12345.0
    out = whole[64:-64].reshape(shape)
    _run(given, out, hard=hard)
    assert (whole[:64] == 12345.0).all()
    assert (whole[-64:] == 12345.0).all()
    assert (np.abs(out - wanted) <= bound).all()
    for name in ("x", "residual"):  # in place
        same = {**given, name: given[name].copy()}
        _run(same, same[name], hard=hard)
        np.testing.assert_array_equal(same[name], out)


def test_every_activation_and_no_bias() -> None:
    given = _operands((2, 6, 5, 33), 12)
    del given["residual"], given["squeeze_bias"], given["excite_bias"]
    x, one = given["x"], {name: value.astype(np.float64) for name, value in given.items()}
    sums = one["x"].mean((1, 2)) @ one["squeeze"].T
    inner = sums / (1 + np.exp(-sums))
    gate = 1 / (1 + np.exp(-(inner @ one["excite"].T)))
    scaled = one["x"] * gate[:, None, None]
    for last, wanted in (
        (("", 0.0), scaled),
        (("relu", 0.0), np.maximum(scaled, 0)),
        (("relu6", 0.0), np.clip(scaled, 0, 6)),
        (("leaky_relu", 0.25), np.where(scaled < 0, scaled * 0.25, scaled)),
        (("hard_swish", 0.0), scaled * np.clip(scaled + 3, 0, 6) / 6),
    ):
        out = np.full(x.shape, np.nan, np.float32)
        _run(given, out, inner=("silu", 0.0), last=last)
        np.testing.assert_allclose(out, wanted, rtol=0, atol=33 * 12 * EPS)


def test_a_gate_of_zero_and_nan() -> None:
    given = _operands((2, 3, 4, 20), 4)
    given["excite"][:] = 0.0
    given["excite_bias"][:] = -1000.0
    given["residual"][:] = 0.0
    given["x"][1, 0, 0, 7] = np.nan
    out = np.full((2, 3, 4, 20), np.nan, np.float32)
    _run(given, out)
    assert (out[0] == 0).all()
    assert np.isnan(out[1]).all()  # each gate of the second image reads the mean that is NaN


def test_bad_arguments() -> None:
    for message, arguments, options in (
        ("x_shape: expected 4 extents", ((1, 2, 3), 4), {}),
        ("shape: expected extents from 1", ((1, 2, 3, 0), 4), {}),
        ("activation", ((1, 2, 3, 4), 4), {"inner": ("tan", 0.0)}),
    ):
        with pytest.raises(KernelError, match=message):
            kernels.ExcitationPlan(*arguments, **options)
    plan = kernels.ExcitationPlan((1, 2, 3, 4), 4)
    for operands in ([1] * 5, [1, 0, 1, 1, 1, 1]):
        with pytest.raises(KernelError, match="addresses: expected x, squeeze"):
            plan.run(operands, 1)
    with pytest.raises(KernelError, match="addresses: expected integers"):
        plan.run([1, "two", 1, 1, 1, 1], 1)
