"""Convolutions that read x in channels first: right, within their arrays, and refused by others."""

from __future__ import annotations

from dataclasses import replace

import convolution
import numpy as np
import pytest
from activation import REFERENCES
from convolution import CASES, STEMS, Case
from fenced_memory import at_the_end

from bestof import kernels
from bestof.errors import KernelError

EPSILON = float(np.finfo(np.float32).eps) / 2

# Widths around a tile, channels around a vector and a panel, one line, one pixel, pads larger than
# the image, dilation, several images; more than the first layers of networks.
OWN = (
    Case((2, 31, 29, 3), (33, 3, 3, 3), (2, 2), ((1, 1), (1, 1))),
    Case((1, 64, 57, 3), (16, 3, 3, 3), (2, 2), ((0, 1), (0, 1))),
    Case((1, 37, 41, 4), (70, 7, 7, 4), (2, 2), ((3, 3), (3, 3))),
    Case((3, 9, 15, 1), (5, 5, 3, 1), (1, 3), ((4, 2), (0, 6))),
    Case((2, 1, 1, 2), (17, 3, 3, 2), padding=((1, 1), (1, 1))),
    Case((1, 12, 30, 3), (40, 3, 3, 3), dilation=(2, 3), padding=((2, 2), (3, 3))),
    Case((1, 20, 20, 40), (32, 5, 5, 40), padding=((2, 2), (2, 2))),
)


def turned(case: Case) -> tuple[int, ...]:
    n, h, w, c = case.x_shape
    return n, c, h, w


def names(case: Case) -> list[str]:
    return list(
        kernels.conv2d_algorithms(
            turned(case), case.w_shape, x_layout="channels_first", **case.geometry
        )
    )


ALL = [case for case in (*OWN, *STEMS, *CASES[::4]) if names(case)]


def test_every_row_that_reads_channels_first_is_tried() -> None:
    rows = {name for name, row in kernels.algorithms().items() if row.planes}
    assert rows == {name for case in ALL for name in names(case)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_sums_are_those_of_float64(case: Case, threads: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(case.x_shape, dtype=np.float32)
    w = rng.standard_normal(case.w_shape, dtype=np.float32)
    bias = rng.standard_normal(case.w_shape[0], dtype=np.float32)
    residual = rng.standard_normal(case.y_shape, dtype=np.float32)
    wanted = convolution.forward(case, x, w) + bias + residual
    size = convolution.forward(case, np.abs(x), np.abs(w)) + np.abs(bias) + np.abs(residual)
    planes = at_the_end(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    for name in names(case):
        out = at_the_end(np.full(case.y_shape, np.nan, np.float32))
        kernels.conv2d(
            *(planes, w, bias),
            residual=residual,
            algorithm=name,
            out=out,
            x_layout="channels_first",
            threads=threads,
            **case.geometry,
        )
        terms = np.prod(case.w_shape[1:]) + 2
        assert (np.abs(out - wanted) <= EPSILON * (terms + 1) * size).all(), name


@pytest.mark.parametrize("activation", REFERENCES, ids=str)
def test_plans_and_packed_weights(activation: kernels.problem.Activation) -> None:
    case = OWN[0]
    rng = np.random.default_rng(5)
    x = rng.standard_normal(turned(case), dtype=np.float32)
    w = rng.standard_normal(case.w_shape, dtype=np.float32)
    for name in names(case):
        options = {"algorithm": name, "activation": activation, **case.geometry}
        whole = kernels.conv2d(x, w, x_layout="channels_first", **options)
        plan = kernels.Conv2dPlan(x.shape, w.shape, x_layout="channels_first", **options)
        assert plan.x_shape == x.shape
        out = np.full(plan.y_shape, np.nan, np.float32)
        packed = kernels.pack_weights(w, name)
        assert plan.run(x.ctypes.data, packed, out.ctypes.data)
        np.testing.assert_array_equal(out, whole)


def test_nan_and_infinity_reach_their_results_only() -> None:
    case = replace(OWN[1], x_shape=(1, 20, 30, 3))
    x = np.ones(turned(case), np.float32)
    x[0, 1, 7, 9], x[0, 2, 12, 3] = np.nan, np.inf
    w = np.ones(case.w_shape, np.float32)
    exact = convolution.forward(case, x.transpose(0, 2, 3, 1), w)
    for name in names(case):
        got = kernels.conv2d(x, w, algorithm=name, x_layout="channels_first", **case.geometry)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
        np.testing.assert_array_equal(got[~np.isnan(got)], exact[~np.isnan(exact)])


def test_what_cannot_be_read_is_refused() -> None:
    x, w = np.zeros((1, 3, 8, 9), np.float32), np.zeros((8, 3, 3, 3), np.float32)
    with pytest.raises(KernelError, match=r"channels first \(direct\); got convgemm"):
        kernels.conv2d(x, w, algorithm="convgemm", x_layout="channels_first")
    with pytest.raises(KernelError, match="x_layout: expected channels_last or channels_first"):
        kernels.conv2d(x, w, x_layout="planes")
    with pytest.raises(KernelError, match=r"\(those of x, 8"):
        kernels.conv2d(x.transpose(0, 2, 3, 1).copy(), w, x_layout="channels_first")
    assert not kernels.conv2d_algorithms(
        x.shape, w.shape, x_layout="channels_first", direction="backward_input"
    )
    # Several groups; and more terms than one chain of sums may have.
    for channels, groups in ((6, 2), (200, 1)):
        shape, filters = (1, channels, 8, 9), (8, 3, 3, channels // groups)
        options = {"x_layout": "channels_first", "groups": groups}
        assert not kernels.conv2d_algorithms(shape, filters, **options)
