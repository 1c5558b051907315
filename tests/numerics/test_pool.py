"""Pooling against a naive float64 oracle, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import _native


@dataclass(frozen=True, slots=True)
class Case:
    shape: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)


CASES = (
    Case((2, 8, 8, 64), (2, 2), (2, 2)),
    Case((1, 15, 13, 17), (3, 3), (2, 2), (1, 1)),
    Case((2, 7, 7, 33), (7, 7), (1, 1)),
    Case((1, 9, 6, 3), (3, 2), (1, 3), (1, 0)),
    Case((1, 1, 1, 1), (1, 1), (1, 1)),
    Case((0, 4, 4, 8), (2, 2), (2, 2)),
)


def _windows(case: Case):  # type: ignore[no-untyped-def]
    """Yield each position of y with the rows and columns of x in its window."""
    out = [
        (e + 2 * p - k) // s + 1
        for e, k, s, p in zip(case.shape[1:3], case.kernel, case.stride, case.padding, strict=True)
    ]
    for oy in range(out[0]):
        for ox in range(out[1]):
            y, x = oy * case.stride[0] - case.padding[0], ox * case.stride[1] - case.padding[1]
            yield (
                (oy, ox),
                slice(max(y, 0), y + case.kernel[0]),
                slice(max(x, 0), x + case.kernel[1]),
            )


def _oracle(
    case: Case, x: NDArray[np.float32], grad: NDArray[np.float32], kind: str, count_padding: bool
):  # type: ignore[no-untyped-def]
    y, dx = np.zeros(grad.shape), np.zeros(x.shape)
    for (oy, ox), rows, columns in _windows(case):
        window = x[:, rows, columns].astype(np.float64)
        seen = window.shape[1] * window.shape[2]
        flat = window.reshape(x.shape[0], seen, x.shape[3])
        if kind == "max":
            y[:, oy, ox] = flat.max(axis=1)
            given = np.zeros(flat.shape)
            np.put_along_axis(given, flat.argmax(axis=1)[:, None], grad[:, oy, ox][:, None], axis=1)
            dx[:, rows, columns] += given.reshape(window.shape)
        else:
            divisor = case.kernel[0] * case.kernel[1] if count_padding else seen
            y[:, oy, ox] = flat.sum(axis=1) / divisor
            dx[:, rows, columns] += (grad[:, oy, ox] / divisor)[:, None, None]
    return y, dx


@pytest.mark.parametrize(
    ("kind", "count_padding"), [("max", True), ("average", True), ("average", False)]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(case: Case, kind: str, count_padding: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-4, 4, case.shape).astype(
        np.float32
    )  # many equal elements: the first must win
    options = {
        "kind": kind,
        "stride": case.stride,
        "padding": case.padding,
        "count_padding": count_padding,
    }
    y = kernels.pool2d(x, case.kernel, **options)
    grad = rng.standard_normal(y.shape, dtype=np.float32)
    wanted_y, wanted_dx = _oracle(case, x, grad, kind, count_padding)
    taps = case.kernel[0] * case.kernel[1]
    np.testing.assert_allclose(y, wanted_y, rtol=0, atol=taps * 6e-8 * 4)
    dx = np.full(case.shape, np.nan, np.float32)
    kernels.pool2d_backward(grad, case.shape, case.kernel, x=x, out=dx, **options)
    np.testing.assert_allclose(dx, wanted_dx, rtol=0, atol=taps * 6e-8 * 8)


@pytest.mark.parametrize("extent", range(4, 11))
def test_a_last_window_beyond_the_padding(extent: int) -> None:
    """The last window may reach beyond the padding, and begins before the end of the image."""
    x = np.random.default_rng(4).standard_normal((2, extent, extent + 1, 17), dtype=np.float32)
    padded = np.full((2, extent + 9, extent + 10, 17), -np.inf, np.float32)
    padded[:, 1 : extent + 1, 1 : extent + 2] = x
    rows, columns = (
        [place for place in range(0, n + 1, 3) if place < n + 2 - 4 + 3] for n in x.shape[1:3]
    )
    wanted = [[padded[:, y : y + 4, x : x + 4].max((1, 2)) for x in columns] for y in rows]
    y = kernels.pool2d(x, 4, stride=3, padding=1, ceil=True)
    np.testing.assert_array_equal(y, np.stack(wanted).transpose(2, 0, 1, 3))


def test_a_nan_is_a_maximum() -> None:
    x = np.zeros((1, 4, 4, 20), np.float32)
    x[0, 0, 1, 3] = np.nan
    bad = np.isnan(kernels.pool2d(x, 2))
    assert bad[0, 0, 0, 3]
    assert bad.sum() == 1


def test_the_gradient_of_a_nan_goes_to_the_last_one() -> None:
    """As in PyTorch, where a NaN is larger than one before it."""
    x = np.zeros((1, 2, 2, 20), np.float32)
    x[0, 0, :, 3] = np.nan
    x[0, :, 0, 7] = np.nan
    x[0, :, :, 9] = -np.inf
    dx = kernels.pool2d_backward(np.ones((1, 1, 1, 20), np.float32), x.shape, 2, x=x)
    for channel, place in ((3, (0, 1)), (7, (1, 0)), (9, (0, 0)), (0, (0, 0))):
        wanted = np.zeros((2, 2))
        wanted[place] = 1
        np.testing.assert_array_equal(dx[0, :, :, channel], wanted)


def test_bad_arguments() -> None:
    x = np.ones((1, 4, 4, 2), np.float32)
    for message, arguments in (
        ("padding: expected at most half", {"kernel": 2, "padding": 2}),
        ("kernel: expected one that fits", {"kernel": 5}),
        ("kernel: expected an integer", {"kernel": "two"}),
        ("kernel, stride, padding: expected positive", {"kernel": 2, "stride": 0}),
        ("kind: expected max or average", {"kernel": 2, "kind": "median"}),
        ("ceil: expected True or False", {"kernel": 2, "ceil": True, "kind": "average"}),
        ("ceil: expected True or False", {"kernel": 2, "ceil": 1}),
        ("out: expected shape", {"kernel": 2, "out": np.ones((1, 2, 3, 2), np.float32)}),
    ):
        with pytest.raises(KernelError, match=message):
            kernels.pool2d(x, **arguments)
    with pytest.raises(KernelError, match="x: expected the array that was pooled"):
        kernels.pool2d_backward(x, (1, 8, 8, 2), 2)


@pytest.mark.parametrize(
    ("kind", "count_padding"), [("max", True), ("average", True), ("average", False)]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_plan_computes_the_same_as_the_call(case: Case, kind: str, count_padding: bool) -> None:
    x = np.random.default_rng(2).standard_normal(case.shape, dtype=np.float32)
    options = {
        "kind": kind,
        "stride": case.stride,
        "padding": case.padding,
        "count_padding": count_padding,
    }
    wanted = kernels.pool2d(x, case.kernel, **options)  # type: ignore[arg-type]
    plan = kernels.Pool2dPlan(case.shape, case.kernel, **options)  # type: ignore[arg-type]
    assert (plan.x_shape, plan.y_shape) == (case.shape, wanted.shape)
    y = np.full(wanted.shape, np.nan, np.float32)
    plan.run(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, wanted)


def test_a_plan_refuses_invalid_poolings() -> None:
    with pytest.raises(KernelError, match="x_shape: expected 4 extents"):
        kernels.Pool2dPlan((1, 4, 4), 2)
    with pytest.raises(KernelError, match="x_shape: expected 4 extents"):
        kernels.Pool2dPlan((1, 4, 0, 4), 2)
    with pytest.raises(KernelError, match="kernel: expected one that fits"):
        kernels.Pool2dPlan((1, 4, 4, 3), 5)
    for shape in ((1, 2**63 - 1, 4, 1), (2**31, 4, 4, 1)):
        with pytest.raises(KernelError, match=r"x: expected extents from 0 to 2\^31 - 1"):
            kernels.Pool2dPlan(shape, 3, padding=1)
    for shape in ((1, 2**63 - 1, 2**62, 2**62), (1, 2**31, 2**31, 4)):
        with pytest.raises(KernelError, match="x: expected extents"):
            kernels.Pool2dPlan(shape, 3)
    with pytest.raises(KernelError, match=r"x: expected at most 2\^40 elements"):
        kernels.Pool2dPlan((1, 2**20, 2**20 + 1, 1), 3)
    assert kernels.Pool2dPlan((1, 2**20, 2**20, 1), 2).y_shape == (1, 2**19, 2**19, 1)
    plan = kernels.Pool2dPlan((1, 4, 4, 3), 2)
    for addresses in ((0, 64), (64, 0)):
        with pytest.raises(KernelError, match="addresses: expected two that are not 0"):
            plan.run(*addresses)
    with pytest.raises(KernelError, match="addresses: expected integers from 0 on"):
        plan.run(-64, 64)


@pytest.mark.parametrize(
    ("shape", "numbers", "said"),
    [
        ([1, 2], [1, 1, 1, 1, 0, 0, 0], "x: expected 4 dimensions"),
        ([1, 2, 3, 4, 5], [1, 1, 1, 1, 0, 0, 0], "x: expected 4 dimensions"),
        ([1, 4, 4, 1], [1, 1, 1, 1, 0, 0], "numbers: expected 7; got 6"),
        ([1, 4, 4, 1], [1, 1, 1, 1, 0, 0, 0, 0], "numbers: expected 7; got 8"),
        ([-1, 4, 4, 1], [1, 1, 1, 1, 0, 0, 0], "x: expected extents"),
    ],
)
def test_the_extension_reads_nothing_beyond_its_arguments(
    shape: list[int], numbers: list[int], said: str
) -> None:
    with pytest.raises(KernelError, match=said):
        _native.PoolPlan(shape, numbers, True, True, "float32", 0)


@pytest.mark.parametrize(
    ("kind", "count_padding"), [("max", True), ("average", True), ("average", False)]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bfloat16_is_rounded_once(case: Case, kind: str, count_padding: bool) -> None:
    """A maximum is exact; an average is a sum of float32, a division and one rounding."""
    x = rounded(np.random.default_rng(3).standard_normal(case.shape, np.float32))
    options = {
        "kind": kind,
        "stride": case.stride,
        "padding": case.padding,
        "count_padding": count_padding,
    }
    y = kernels.pool2d(x, case.kernel, dtype="bfloat16", **options)
    nothing = np.zeros(y.shape, np.float32)
    wanted, _ = _oracle(case, value_of(x), nothing, kind, count_padding)
    size, _ = _oracle(case, np.abs(value_of(x)), nothing, "average", True)
    terms = case.kernel[0] * case.kernel[1]
    bound = UNIT * np.abs(wanted) + (1 + UNIT) * 2.0**-24 * (terms + 1) * terms * size
    assert y.dtype == np.uint16
    assert (np.abs(value_of(y) - wanted) <= (0 if kind == "max" else bound)).all()
    into = np.full(y.shape, 0x7FC1, np.uint16)
    plan = kernels.Pool2dPlan(case.shape, case.kernel, dtype="bfloat16", **options)
    if y.size:
        plan.run(x.ctypes.data, into.ctypes.data)
        np.testing.assert_array_equal(into, y)


def test_a_type_without_kernels_is_refused() -> None:
    with pytest.raises(KernelError, match="dtype: expected 'float32' or 'bfloat16'"):
        kernels.pool2d(np.zeros((1, 4, 4, 2), np.float32), 2, dtype="float16")
    with pytest.raises(KernelError, match="x: expected bfloat16"):
        kernels.pool2d(np.zeros((1, 4, 4, 2), np.float32), 2, dtype="bfloat16")


@pytest.mark.parametrize("channels", [3, 16, 64, 150])
@pytest.mark.parametrize("kernel", [2, 3])
def test_maxima_of_nan_and_infinities(kernel: int, channels: int) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((2, 13, 17, channels), np.float32)
    for value in (np.nan, np.inf, -np.inf, 3e38, -3e38):
        for _ in range(3):
            x[tuple(map(rng.integers, x.shape))] = value
    x[1, 4:9, 3:7] = -np.inf  # whole windows of it
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (1, 2))
    wanted = windows[:, ::2, ::2].max(axis=(-2, -1))  # NaN where an element is
    np.testing.assert_array_equal(kernels.pool2d(x, kernel, stride=2), wanted)
    assert np.isnan(wanted).any()
    x[np.isnan(x)] = 1.0
    wanted = windows[:, ::2, ::2].max(axis=(-2, -1))
    np.testing.assert_array_equal(kernels.pool2d(x, kernel, stride=2), wanted)
