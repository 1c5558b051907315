"""Convolutions of float32 whose operands are split into three parts of bfloat16.

The parts leave out at most 2^-23 of a product. Outputs whose weights are far from 1 are scaled by
powers of two; results that see pixels far from 1 are computed by vectors. What is smaller than the
largest pixel of its window, or the largest weight of its output, by 2^-64 may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator

import convolution
import numpy as np
import pytest
from convolution import Case, Float64
from fenced_memory import at_the_end
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray
from test_convolution_tiles import CASES, EPSILON, LARGE, TINY

from bestof import kernels

NAME = "convgemm_bf16x3"
Array = NDArray[np.float32]


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from forced(request.param)


def applies(case: Case) -> bool:
    return NAME in kernels.conv2d_algorithms(case.x_shape, case.w_shape, **case.geometry)


def padded(x: tuple[int, int, int, int], outputs: int, stride: int = 1, groups: int = 1) -> Case:
    """Return a kernel of 3x3 that reads one pixel beyond each side."""
    return Case(
        x,
        (outputs, 3, 3, x[3] // groups),
        (stride, stride),
        ((1, 1), (1, 1)),
        groups=groups,
    )


# Sums of more than 128 steps of depth are cut.
LONG = (padded((1, 4, 5, 512), 33), Case((2, 3, 3, 4500), (40, 1, 1, 4500)))


def convolve(case: Case, x: Array, w: Array, threads: int = 2, **options: object) -> Array:
    """Return the results; none of them may stay NaN, and nothing beside them may be written."""
    size = int(np.prod(case.y_shape))
    whole = np.full(size + 128, np.nan, np.float32)
    out = whole[64 : 64 + size].reshape(case.y_shape)
    kernels.conv2d(
        at_the_end(x),
        at_the_end(w),
        out=out,
        algorithm=NAME,
        threads=threads,
        **case.geometry,
        **options,
    )
    assert np.isnan(whole[:64]).all()
    assert np.isnan(whole[64 + size :]).all()
    return out


def operands(case: Case, seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(case.x_shape, np.float32)
    return x, draw.standard_normal(case.w_shape, np.float32)


def bound(case: Case, x: Array, w: Array, others: Float64 | float = 0.0) -> Float64:
    """Return the bound of each result. others: the magnitude of bias and residual."""
    depth = int(np.prod(case.w_shape[1:]))
    sums = convolution.forward(case, np.abs(x), np.abs(w)) + others
    largest = np.abs(w).max((1, 2, 3)) * convolution.forward(case, np.abs(x), np.ones_like(w))
    return EPSILON * (depth + 3) * sums + depth * (2.0**-64 * largest + TINY)


def wanted_of(case: Case, x: Array, w: Array) -> Array:
    """Return the results of float64 as float32: finite, infinite or NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return convolution.forward(case, x, w).astype(np.float32)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_edges_of_blocks(every: int) -> None:
    cases = [case for case in (*CASES, *LONG) if applies(case)]
    assert len(cases) > 60
    for seed, case in enumerate(cases[:: 1 if kernels.isa() == "amx_bf16" else every]):
        x, w = operands(case, seed)
        draw = np.random.default_rng(seed)
        bias = draw.standard_normal(case.w_shape[0], np.float32)
        residual = draw.standard_normal(case.y_shape, np.float32)
        y = convolve(case, x, w, 1 + seed % 2, bias=at_the_end(bias), residual=at_the_end(residual))
        wanted = convolution.forward(case, x, w) + bias + residual
        allowed = bound(case, x, w, np.abs(bias) + np.abs(residual))
        assert (np.abs(y - wanted) <= allowed).all(), case


@pytest.mark.parametrize("case", [one for one in (*LARGE, *LONG) if applies(one)], ids=str)
def test_threads_and_packing_change_no_bit(case: Case) -> None:
    x, w = operands(case, 31)
    packed = kernels.pack_weights(w, NAME, groups=case.groups)
    first = convolve(case, x, w, 1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(convolve(case, x, w, threads), first)
    again = kernels.conv2d(x, packed, threads=3, **case.geometry)
    np.testing.assert_array_equal(again, first)


def test_sums_are_more_accurate_than_those_of_vectors() -> None:
    case = padded((2, 14, 14, 256), 64)
    x, w = operands(case, 32)
    wanted = convolution.forward(case, x, w)

    def error(name: str) -> float:
        y = kernels.conv2d(x, w, algorithm=name, **case.geometry)
        return float(np.square(y - wanted).mean())

    assert error(NAME) <= 1.1 * error("convgemm")


@pytest.mark.parametrize("groups", [1, 2])
def test_pixels_and_outputs_of_every_magnitude(groups: int) -> None:
    """Powers of two from the least to the largest. A window sees pixels of several."""
    case = padded((1, 12, 30, 32 * groups), 70, groups=groups)
    x, w = operands(case, 33)
    x *= np.exp2(np.linspace(-148, 125.9, 360)).astype(np.float32).reshape(1, 12, 30, 1)
    w *= np.exp2(np.linspace(125.9, -148, 70)).astype(np.float32).reshape(70, 1, 1, 1)
    wanted = convolution.forward(case, x, w)
    fits = convolution.forward(case, np.abs(x), np.abs(w)) < np.finfo(np.float32).max
    y = convolve(case, x, w)
    assert (np.abs(y - wanted)[fits] <= bound(case, x, w)[fits]).all()
    assert not np.isfinite(y[np.abs(wanted) > 2.0**129]).any()


@pytest.mark.parametrize("spread", [10, 60, 120])
@pytest.mark.parametrize("scale", [2.0**-95, 2.0**-40, 1.0, 2.0**80])
def test_magnitudes_that_differ_within_a_window(scale: float, spread: int) -> None:
    case = padded((2, 6, 7, 48), 40, stride=2)
    x, w = operands(case, 34)
    draw = np.random.default_rng(35)
    x *= np.exp2(draw.uniform(-spread, 0, case.x_shape)).astype(np.float32)
    w *= np.exp2(draw.uniform(-spread, 0, case.w_shape)).astype(np.float32)
    x[..., ::7] = 0
    x = (x * np.float32(scale)).astype(np.float32)
    wanted = convolution.forward(case, x, w)
    assert (np.abs(convolve(case, x, w) - wanted) <= bound(case, x, w)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**100, 1e-42])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_bits_do_not_depend_on_pixels_that_no_tap_sees(
    groups: int, stride: int, bad: float
) -> None:
    case = padded((2, 7, 9, 64), 66, stride, groups)
    x, w = operands(case, 36)
    usual = convolve(case, x, w)
    for pixel in ((0, 0, 0, 0), (0, 6, 8, 63), (1, 3, 4, 1), (1, 0, 8, 40), (0, 2, 0, 2)):
        changed = x.copy()
        changed[pixel] = bad
        mark = np.zeros_like(x)
        mark[pixel] = 1
        seen = convolution.forward(case, mark, np.ones_like(w)) > 0
        wanted = wanted_of(case, changed, w)
        y = convolve(case, changed, w)
        np.testing.assert_array_equal(y[~seen], usual[~seen])
        np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
        np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**127, 1e-42])
def test_bits_do_not_depend_on_other_outputs(bad: float) -> None:
    case = padded((1, 6, 7, 64), 70)
    x, w = operands(case, 37)
    usual = convolve(case, x, w)
    outputs = [0, 31, 32, 69]
    w[outputs, 1, 2, 63] = bad
    x[0, 3, 3, 5] = 1e-42  # a number that tiles take for zero, beside infinity
    x[0, 3, 3, 63] = 1e-42
    with np.errstate(invalid="ignore", over="ignore"):
        wanted, y = wanted_of(case, x, w), convolve(case, x, w)
    others = np.delete(np.arange(70), outputs)
    far = np.ones((6, 7), bool)
    far[2:5, 2:5] = False
    np.testing.assert_array_equal(y[0][far][:, others], usual[0][far][:, others])
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


def test_zeros_stay_zeros() -> None:
    case = padded((1, 8, 9, 32), 40)
    x, w = operands(case, 38)
    x[0, :4], w[9] = 0, -0.0
    y = convolve(case, x, w)
    assert (y[0, :3] == 0).all()
    assert (y[..., 9] == 0).all()


def test_a_residual_may_be_overwritten() -> None:
    case = padded((1, 9, 8, 64), 64)
    x, w = operands(case, 39)
    x[0, 4, 4] *= np.float32(1e-30)
    w[7] *= np.float32(1e-25)
    out = np.random.default_rng(40).standard_normal(case.y_shape, np.float32)
    wanted = convolution.forward(case, x, w) + out
    allowed = bound(case, x, w, np.abs(out))
    kernels.conv2d(x, w, residual=out, out=out, algorithm=NAME, **case.geometry)
    assert (np.abs(out - wanted) <= allowed).all()


def test_taps_far_outside_of_the_image_are_left_to_others(isa: str) -> None:
    """A spread image holds the zeros between taps. Its size must not exceed 64 bits."""
    for far in (1 << 20, (1 << 31) - 1):
        case = Case(
            (1, 1, 1, 64), (8, 3, 3, 64), padding=((far, far), (far, far)), dilation=(far, far)
        )
        promised = kernels.conv2d_algorithms(case.x_shape, case.w_shape, **case.geometry)
        assert NAME not in promised
        assert isa != "amx_bf16" or "convgemm_bf16" not in promised
        assert all(0 <= row.scratch_bytes < 1 << 30 for row in promised.values())
        ones = np.ones(case.x_shape, np.float32), np.ones(case.w_shape, np.float32)
        assert (kernels.conv2d(*ones, algorithm="convgemm", **case.geometry) == 64).all()
