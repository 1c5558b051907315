"""Every pass of every algorithm errs within its promise, and writes nothing but its result."""

from __future__ import annotations

import re
from functools import cache

import convolution
import numpy as np
import pytest
from activation import REFERENCES
from bfloat16 import UNIT
from convolution import CASES, CROPPED, GROUPED, LONG, SHORT_TILES, STEMS, STRIDED, Case
from fenced_memory import at_the_end
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Float32 = NDArray[np.float32]
DIRECTIONS = ("forward", "backward_input", "backward_weight")
EPSILON = float(np.finfo(np.float32).eps) / 2


def _names(case: Case, direction: str) -> list[str]:
    return list(
        kernels.conv2d_algorithms(case.x_shape, case.w_shape, direction=direction, **case.geometry)
    )


# Where two threads share the work in every way: blocks, phases, panels.
TEAMS = (
    CASES[1],
    CASES[2],
    CASES[3],
    CASES[7],
    CASES[10],
    CASES[12],
    *LONG[:4],
    *STRIDED[:2],
    *STRIDED[20:22],
    *STEMS[:3],
)

# Names do not depend on the instruction set, so they are known while tests are collected.
TRIALS: dict[tuple[str, str], list[Case]] = {}
for case in CASES:
    for direction in DIRECTIONS:
        for name in _names(case, direction):
            TRIALS.setdefault((direction, name), []).append(case)


def test_every_pass_of_every_row_is_tried() -> None:
    for row in kernels.algorithms().values():
        for direction in row.directions:
            assert (direction, row.name) in TRIALS


@cache
def _operands(case: Case, direction: str, relu: bool) -> tuple[Float32, Float32]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(case.x_shape, dtype=np.float32)
    w = rng.standard_normal(case.w_shape, dtype=np.float32)
    grad = rng.standard_normal(case.y_shape, dtype=np.float32)
    if relu:
        x, grad = np.maximum(x, 0), np.maximum(grad, 0)
    return {"forward": (x, w), "backward_input": (grad, w), "backward_weight": (grad, x)}[direction]


@cache
def _oracle(
    case: Case, direction: str, relu: bool, magnitudes: bool = False
) -> convolution.Float64:
    operands = _operands(case, direction, relu)
    return getattr(convolution, direction)(
        case, *(map(np.abs, operands) if magnitudes else operands)
    )


def _run(
    case: Case,
    direction: str,
    name: str,
    operands: tuple[Float32, Float32],
    out: Float32,
    threads: int,
) -> None:
    options = {"algorithm": name, "out": out, "threads": threads, **case.geometry}
    if direction == "forward":
        kernels.conv2d(*operands, **options)
    elif direction == "backward_input":
        kernels.conv2d_backward_input(*operands, case.x_shape, **options)
    else:
        kernels.conv2d_backward_weight(*operands, case.w_shape, **options)


def _guarded(shape: tuple[int, ...]) -> tuple[Float32, Float32]:
    """A result full of NaN between two guards of 64 elements, and the whole."""
    count = int(np.prod(shape))
    whole = np.full(count + 128, 12345.0, np.float32)
    whole[64 : 64 + count] = np.nan
    return whole[64 : 64 + count].reshape(shape), whole


# One test has all cases of a row: with a test for each, pytest took more time than the kernels.
@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("direction", "name"), TRIALS)
@pytest.mark.parametrize("relu", [False, True], ids=["signed", "relu"])
def test_within_the_promised_error(direction: str, name: str, relu: bool, every: int) -> None:
    cases = TRIALS[direction, name]
    first = (2 * list(TRIALS).index((direction, name)) + relu) % min(every, len(cases))
    for case in cases[first::every]:
        _assert_within(case, direction, name, relu)


def _assert_within(case: Case, direction: str, name: str, relu: bool) -> None:
    first, second = _operands(case, direction, relu)
    wanted = _oracle(case, direction, relu)
    out, whole = _guarded(wanted.shape)
    # A team of two for a few trials only: on a busy machine its members mostly wait for each other.
    _run(case, direction, name, (first, second), out, 2 if relu and case in TEAMS else 1)
    assert (np.concatenate([whole[:64], whole[-64:]]) == 12345.0).all(), (
        "it wrote outside its result"
    )
    if wanted.size == 0:
        return
    assert not np.isnan(out).any(), "it left elements unwritten"
    promise = kernels.conv2d_algorithms(
        case.x_shape, case.w_shape, direction=direction, **case.geometry
    )[name]
    error, scale = out - wanted, np.sqrt(np.mean(wanted**2))
    row = promise.algorithm
    # The errors of bfloat16 come close to the promise, which needs many results to hold. The bound
    # of each element stands below.
    if row.rounds == "nothing" or wanted.size >= 1000:
        assert np.sqrt(np.mean(error**2)) <= promise.error_bound * scale
        largest = max(scale, np.abs(wanted).max() / 4)
        assert np.abs(error).max() <= promise.maximum_bound * largest
    if not row.transforms:
        # For sums of products in any order, |error| <= eps * (terms + 1) * sum |a b|.
        y = case.y_shape
        terms = {
            "forward": np.prod(case.w_shape[1:]),
            "backward_input": np.prod(case.w_shape[:3]) / case.groups,
            "backward_weight": y[0] * y[1] * y[2],
        }[direction]
        rounded = {"nothing": 0.0, "weights": UNIT, "both": 2 * UNIT + UNIT**2}[row.rounds]
        bound = (rounded + EPSILON * (terms + 1)) * _oracle(case, direction, relu, magnitudes=True)
        assert (np.abs(error) <= bound + np.finfo(np.float32).tiny).all()


@pytest.mark.long(every=4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("direction", "name"),
    [
        (direction, row.name)
        for row in kernels.algorithms().values()
        if row.shapes == "kernel" and row.kernel == (3, 3) and row.stride == 1
        for direction in row.directions
    ],
)
def test_tiles_that_the_image_ends_in(direction: str, name: str, threads: int) -> None:
    for case in (*SHORT_TILES, *CROPPED)[threads - 1 :: 2]:
        wanted = _oracle(case, direction, False)
        out, whole = _guarded(wanted.shape)
        _run(case, direction, name, _operands(case, direction, False), out, threads)
        assert (np.concatenate([whole[:64], whole[-64:]]) == 12345.0).all(), (
            f"{case}: it wrote outside its result"
        )
        promise = kernels.conv2d_algorithms(
            case.x_shape, case.w_shape, direction=direction, **case.geometry
        )[name]
        error = np.sqrt(np.mean((out - wanted) ** 2) / np.mean(wanted**2))
        assert error <= promise.error_bound, (
            case
        )  # of NaN, where something was left unwritten, it is not


EPILOGUE_CASES = (
    CASES[15],
    Case((1, 6, 5, 19), (19, 3, 3, 1), padding=((1, 1), (1, 1)), groups=19),
    Case((5, 1, 1, 40), (19, 1, 1, 40)),
    Case((1, 8, 9, 24), (24, 3, 3, 4), padding=((1, 1), (1, 1)), groups=6),
    # Whole panels (32 results on AVX-512) with a residual: alone, and beside a tail in two groups.
    Case((1, 9, 9, 16), (64, 3, 3, 16), padding=((1, 1), (1, 1))),
    Case((1, 5, 4, 34), (130, 3, 3, 17), padding=((1, 1), (1, 1)), groups=2),
    Case(
        (1, 26, 26, 8), (32, 3, 3, 8), padding=((1, 1), (1, 1))
    ),  # tiles enough for Winograd's fused blocks
)


@pytest.mark.long(every=5)
@pytest.mark.parametrize("activation", REFERENCES, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", EPILOGUE_CASES, ids=str)
def test_epilogue_and_packed_weights(
    case: Case, threads: int, packed: bool, activation: kernels.problem.Activation
) -> None:
    rng = np.random.default_rng(11)
    x, w = _operands(case, "forward", False)
    w = w / np.float32(
        np.sqrt(np.prod(w.shape[1:]))
    )  # so that results have the size of 1, where activations bend
    bias = rng.standard_normal(case.w_shape[0], dtype=np.float32)
    residual = rng.standard_normal(case.y_shape, dtype=np.float32)
    wanted = REFERENCES[activation].value(convolution.forward(case, x, w) + bias + residual)
    promises = kernels.conv2d_algorithms(case.x_shape, case.w_shape, **case.geometry)
    for name, promise in promises.items():
        packs = packed and promise.packs
        weights = kernels.pack_weights(w, name, groups=case.groups) if packs else w
        y, _ = _guarded(case.y_shape)
        kernels.conv2d(
            x,
            weights,
            bias,
            residual=residual,
            activation=activation,
            algorithm=name,
            out=y,
            threads=threads,
            **case.geometry,
        )
        # 32 roundings, and the error of the convolution: at most 2.5e-5 for float32 algorithms.
        own = 3e-3 if promise.algorithm.rounds != "nothing" else 2.5e-5
        np.testing.assert_allclose(
            y, wanted, rtol=0, atol=(own * 4 + 32 * EPSILON) * np.abs(wanted).max(), err_msg=name
        )


@pytest.mark.parametrize("activation", REFERENCES, ids=str)
def test_activations_of_far_numbers(activation: kernels.problem.Activation) -> None:
    """Large negative numbers give zero where the formula does, and -infinity times 0 is NaN."""
    far = np.array([3e37, -3e37, 1e4, -1e4, np.inf, -np.inf, np.nan, 0.0], np.float32)
    x, w = np.zeros((1, 5, 6, 8), np.float32), np.zeros((8, 1, 1, 8), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = REFERENCES[activation].value(far.astype(np.float64))
    for name in kernels.conv2d_algorithms(x.shape, w.shape):
        got = kernels.conv2d(x, w, bias=far, activation=activation, algorithm=name)
        np.testing.assert_allclose(
            got, np.broadcast_to(wanted, got.shape), rtol=1e-6, atol=1e-30, err_msg=name
        )


def test_depthwise_refuses_pixels_too_far_apart() -> None:
    """The lines of a row of results would take gigabytes."""
    near, far = (
        kernels.conv2d_algorithms((1, 3, 64, 8), (8, 3, 3, 1), stride=n, padding=1, groups=8)
        for n in (2, 1 << 19)
    )
    assert {"depthwise"} == set(near) - set(far)


def test_every_activation_of_the_kernels_has_a_reference() -> None:
    """The refusal of an unknown name lists those of native/conv/activations.inc."""
    x = np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(KernelError) as refused:
        kernels.conv2d(x, x, activation="unknown")
    names = re.findall(r"\w+", str(refused.value).partition("expected ")[2].partition(";")[0])
    assert set(names) == {name for name in REFERENCES if isinstance(name, str)}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("case", [CASES[28], CASES[14], CASES[2]], ids=str)
def test_properties(case: Case) -> None:
    x, w = _operands(case, "forward", False)
    x = np.concatenate([x, x[::-1] * 2 - 1])
    for name in _names(case, "forward"):
        y = kernels.conv2d(x, w, algorithm=name, threads=2, **case.geometry)
        each = [
            kernels.conv2d(image[None], w, algorithm=name, threads=1, **case.geometry)[0]
            for image in x
        ]
        scale = np.abs(y).max()
        # Tiles of another image never leak: sums may be ordered differently, so up to rounding.
        np.testing.assert_allclose(y, np.stack(each), rtol=0, atol=5e-5 * scale, err_msg=name)
        np.testing.assert_allclose(
            kernels.conv2d(x * 4, w, algorithm=name, threads=1, **case.geometry),
            y * 4,
            rtol=0,
            atol=1e-4 * scale,
            err_msg=name,
        )
        again = kernels.conv2d(x, w, algorithm=name, threads=1, **case.geometry)
        np.testing.assert_allclose(again, y, rtol=0, atol=5e-5 * scale, err_msg=name)


def test_few_channels_a_group_read_nothing_beyond_the_image() -> None:
    for case in GROUPED:
        x, w = (at_the_end(one) for one in _operands(case, "forward", False))
        promises = kernels.conv2d_algorithms(case.x_shape, case.w_shape, **case.geometry)
        if "grouped" in promises and x.size:
            out = at_the_end(np.full(case.y_shape, np.nan, np.float32))
            _run(case, "forward", "grouped", (x, w), out, 1)
            assert not np.isnan(out).any()


def test_a_nan_stays_where_it_belongs() -> None:
    x = np.ones((1, 20, 20, 4), np.float32)
    w = np.ones((4, 3, 3, 4), np.float32)
    x[0, 10, 10, 1] = np.nan
    for name in ("direct", "convgemm", "im2row"):
        bad = np.isnan(kernels.conv2d(x, w, padding=1, activation="relu", algorithm=name))
        assert bad[0, 9:12, 9:12].all(), name
        assert bad.sum() == 9 * 4, name


def test_a_row_that_no_result_reads_changes_none() -> None:
    """A stride of 2 leaves out the last row; Winograd along columns could mix it into others."""
    w = np.ones((4, 7, 7, 3), np.float32)
    for extent in range(8, 20, 2):
        x = np.ones((1, extent, extent, 3), np.float32)
        x[:, -1] = np.nan
        for name in kernels.conv2d_algorithms(x.shape, w.shape, stride=2):
            y = kernels.conv2d(x, w, stride=2, algorithm=name, threads=1)
            assert not np.isnan(y).any(), (name, extent)
