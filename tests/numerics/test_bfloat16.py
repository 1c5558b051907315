"""Convolutions of bfloat16 with sums of float32, element by element, on every instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import convolution
import numpy as np
import pytest
from activation import REFERENCES
from bfloat16 import UNIT, Bits, rounded, value_of
from convolution import CASES, CROPPED, DEPTHWISE, LONG, SHORT_TILES, Case
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

NAME = "convgemm_bf16"
TRANSFORMING = [
    row.name for row in kernels.algorithms().values() if row.transforms and "bfloat16" in row.dtypes
]
EPSILON = float(np.finfo(np.float32).eps) / 2
TINY = float(np.finfo(np.float32).tiny)  # the instruction takes subnormal numbers for zero
POISON = 0x7FC1  # a NaN that no kernel computes


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and the instruction set that has the products in hardware."""
    yield from forced(request.param)


@cache
def _operands(case: Case) -> tuple[Bits, Bits]:
    draw = np.random.default_rng(3)
    return rounded(draw.standard_normal(case.x_shape, np.float32)), rounded(
        draw.standard_normal(case.w_shape, np.float32)
    )


@cache
def _oracle(case: Case) -> tuple[convolution.Float64, convolution.Float64]:
    """Return the exact result, and eps times the sum of the magnitudes of its terms."""
    x, w = (value_of(one) for one in _operands(case))
    sums = (
        EPSILON * (np.prod(case.w_shape[1:]) + 1) * convolution.forward(case, np.abs(x), np.abs(w))
    )
    return convolution.forward(case, x, w), sums + TINY


def _guarded(shape: tuple[int, ...], offset: int = 0) -> tuple[Bits, Bits]:
    size = int(np.prod(shape))
    whole = np.full(size + 128 + offset, POISON, np.uint16)
    return whole[64 + offset : 64 + offset + size].reshape(shape), whole


def _untouched(whole: Bits, out: Bits) -> bool:
    return bool((whole == POISON).sum() == whole.size - out.size)


# One test has many cases: with a test for each, pytest took more time than the kernels.
SHARES = pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])


@SHARES
@pytest.mark.parametrize("name", [NAME, "convgemm", "depthwise"])
def test_tensors_of_bfloat16(name: str, every: int) -> None:
    cases = DEPTHWISE if name == "depthwise" else (*CASES, *LONG)
    for case in cases[:: max(1, every // 4) if name == "depthwise" else every]:
        x, w = _operands(case)
        out, whole = _guarded(
            case.y_shape, offset=case.w_shape[0] % 3
        )  # aligned to an element, no more
        threads = 2 if case in (*CASES[:8], *DEPTHWISE[:6]) else 1
        kernels.conv2d(
            x, w, out=out, algorithm=name, dtype="bfloat16", threads=threads, **case.geometry
        )
        assert _untouched(whole, out), f"{case}: unwritten elements, or writes outside the result"
        wanted, sums = _oracle(case)
        error = np.abs(value_of(out) - wanted)
        assert (error <= UNIT * np.abs(wanted) + (1 + UNIT) * sums).all(), case


def _applies(name: str, case: Case) -> bool:
    return name in kernels.conv2d_algorithms(
        case.x_shape, case.w_shape, dtype="bfloat16", **case.geometry
    )


@SHARES
@pytest.mark.parametrize("name", TRANSFORMING)
def test_transformed_tensors_of_bfloat16(name: str, every: int) -> None:
    """Nothing but the result is rounded: the error of float32, and one rounding of it."""
    cases = [case for case in (*CASES, *SHORT_TILES, *CROPPED) if _applies(name, case)]
    assert len(cases) > 100
    for case in cases[::every]:
        x, w = _operands(case)
        out, whole = _guarded(case.y_shape, offset=case.w_shape[0] % 3)
        threads = 2 if case in cases[::3] else 1
        kernels.conv2d(
            x, w, out=out, algorithm=name, dtype="bfloat16", threads=threads, **case.geometry
        )
        assert _untouched(whole, out), f"{case}: unwritten elements, or writes outside the result"
        if out.size:
            wanted = _oracle(case)[0]
            sums = _transformed(name, wanted)
            error = np.abs(value_of(out) - wanted)
            assert (error <= UNIT * np.abs(wanted) + (1 + UNIT) * sums).all(), case


def _transformed(name: str, wanted: convolution.Float64) -> float:
    """Return the largest error of the sums, if `name` transforms; below 512 channels."""
    row = kernels.algorithms()[name]
    scale = max(float(np.sqrt(np.mean(wanted**2))), float(np.abs(wanted).max()) / 4)
    return row.error.maximum * scale if row.transforms else 0.0


@SHARES
def test_float32_is_rounded_first(every: int) -> None:
    for case in (*CASES, *LONG)[every // 2 :: every]:
        draw = np.random.default_rng(3)
        x, w = (
            draw.standard_normal(case.x_shape, np.float32),
            draw.standard_normal(case.w_shape, np.float32),
        )
        y = np.full(case.y_shape, np.nan, np.float32)
        kernels.conv2d(
            x, w, out=y, algorithm=NAME, threads=2 if case in CASES[:8] else 1, **case.geometry
        )
        wanted, sums = _oracle(case)  # of the same numbers, rounded by NumPy
        assert (np.abs(y - wanted) <= sums).all(), case


@pytest.mark.parametrize("case", [CASES[1], CASES[5], CASES[14], CASES[19], LONG[3]], ids=str)
def test_every_instruction_set_gives_the_same_bits(case: Case) -> None:
    """Tile registers add pairs in an order of their own; test_convolution_tiles bounds their
    sums."""
    x, w = _operands(case)
    results = {}
    for name in kernels.isas():
        if name == "amx_bf16":
            continue
        kernels.use_isa(name)
        results[name] = kernels.conv2d(x, w, algorithm=NAME, dtype="bfloat16", **case.geometry)
    first = next(iter(results.values()))
    assert not [name for name, other in results.items() if not np.array_equal(other, first)]


def test_rounding() -> None:
    """The bias alone, as y: x is zero."""
    exact = np.array([0, 1, -1, 3.140625, np.inf, -np.inf, 2.0**-120, 3.3895314e38], np.float32)
    low = np.arange(0x3F80_0000, 0x3F83_0000, 0x1000, dtype=np.uint32).view(
        np.float32
    )  # 1 to 1.02, ties among them
    beyond = np.array([0x7F7F_7FFF, 0x7F7F_8000, 0x7F7F_FFFF], np.uint32).view(np.float32)
    drawn = np.random.default_rng(5).standard_normal(999, np.float32)
    bias = np.concatenate([exact, low, -low, beyond, drawn])
    x, w = np.zeros((1, 1, 1, 2), np.uint16), np.zeros((bias.size, 1, 1, 2), np.uint16)
    y = kernels.conv2d(x, w, bias, algorithm=NAME, dtype="bfloat16").ravel()
    np.testing.assert_array_equal(y & 0x7FFF, rounded(bias) & 0x7FFF)  # 0 + -0 is 0
    not_a_number = np.array([0x7F80_0001, 0xFFFF_FFFF, 0x7FC0_0000], np.uint32).view(np.float32)
    y = kernels.conv2d(x, w[:3], not_a_number, algorithm=NAME, dtype="bfloat16").ravel()
    assert np.isnan(value_of(y)).all()


@pytest.mark.parametrize("activation", REFERENCES, ids=str)
@pytest.mark.parametrize("channels", [64, 19])
@pytest.mark.parametrize("name", [NAME, "convgemm", "depthwise", *TRANSFORMING])
def test_the_epilogue_is_in_float32(activation: Any, channels: int, name: str) -> None:
    groups = channels if name == "depthwise" else 1
    shape = channels, 3, 3, channels // groups
    case = Case((2, 6, 5, channels), shape, padding=((1, 1), (1, 1)), groups=groups)
    draw = np.random.default_rng(11)
    x, w = _operands(case)
    w = rounded(
        value_of(w) / np.float32(3 * shape[3] ** 0.5)
    )  # results of the size of 1, where activations bend
    bias = draw.standard_normal(channels, np.float32)
    residual = rounded(draw.standard_normal(case.y_shape, np.float32))
    product = convolution.forward(case, value_of(x), value_of(w))
    wanted = REFERENCES[activation].value(product + bias + value_of(residual))
    out, whole = _guarded(case.y_shape)
    packed = kernels.pack_weights(w, name, groups=groups, dtype="bfloat16")
    kernels.conv2d(
        x,
        packed,
        bias,
        residual=residual,
        activation=activation,
        out=out,
        dtype="bfloat16",
        **case.geometry,
    )
    assert _untouched(whole, out)
    # The activation's own arithmetic is good for 32 roundings.
    sums = EPSILON * (9 * shape[3] + 3) * (np.abs(wanted).max() + 10)
    sums = REFERENCES[activation].steepest * (sums + _transformed(name, product))
    assert (np.abs(value_of(out) - wanted) <= UNIT * np.abs(wanted) + sums + 32 * EPSILON).all()


@pytest.mark.parametrize("name", [NAME, "convgemm"])
def test_widened_pixels_of_nan_reach_the_results_that_read_them(name: str) -> None:
    case = replace(CASES[1], x_shape=(2, 12, 9, 17), w_shape=(5, 3, 3, 17), groups=1)
    x, w = np.ones(case.x_shape, np.float32), np.ones(case.w_shape, np.float32)
    x[0, 5, 4, 3], x[1, 0, 0, 16] = np.nan, np.inf
    wanted = convolution.forward(case, x, w)
    halves = [(one.view(np.uint32) >> 16).astype(np.uint16) for one in (x, w)]  # exact
    y = value_of(kernels.conv2d(*halves, algorithm=name, dtype="bfloat16", **case.geometry))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(wanted))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_pixel_of_nan_reaches_the_results_that_read_it(dtype: str, stride: int) -> None:
    """Depthwise: a line of another row, or the end of another image, must not stay in the lines."""
    case = replace(DEPTHWISE[7], x_shape=(2, 12, 9, 17), stride=(stride, stride))
    x, w = np.ones(case.x_shape, np.float32), np.ones(case.w_shape, np.float32)
    x[0, 5, 4, 3] = np.nan
    wanted = np.isnan(convolution.forward(case, x, w))
    halves = [(one.view(np.uint32) >> 16).astype(np.uint16) for one in (x, w)]  # exact
    operands = [x, w] if dtype == "float32" else halves
    y = kernels.conv2d(*operands, algorithm="depthwise", dtype=dtype, **case.geometry)
    np.testing.assert_array_equal(np.isnan(y if dtype == "float32" else value_of(y)), wanted)


@pytest.mark.parametrize("name", [NAME, "convgemm", *TRANSFORMING])
def test_packed_weights_of_either_type_serve_images_of_both(name: str) -> None:
    case = CASES[1]
    x, w = _operands(case)
    usual = kernels.conv2d(x, w, algorithm=name, dtype="bfloat16", **case.geometry)
    for packed in (
        kernels.pack_weights(w, name, dtype="bfloat16"),
        kernels.pack_weights(value_of(w), name),
    ):
        if name not in TRANSFORMING:
            assert packed.nbytes == w.nbytes * (1 if name == NAME else 2)
        np.testing.assert_array_equal(
            kernels.conv2d(x, packed, dtype="bfloat16", **case.geometry), usual
        )
        y = kernels.conv2d(value_of(x), packed, **case.geometry)
        np.testing.assert_array_equal(rounded(y), usual)


def test_a_plan_takes_addresses_of_bfloat16() -> None:
    case = CASES[1]
    x, w = _operands(case)
    bias = np.linspace(-1, 1, case.w_shape[0], dtype=np.float32)
    plan = kernels.Conv2dPlan(
        case.x_shape,
        case.w_shape,
        algorithm=NAME,
        activation="relu",
        dtype="bfloat16",
        **case.geometry,
    )
    out, whole = _guarded(case.y_shape)
    plan.run(x.ctypes.data, w.ctypes.data, out.ctypes.data, bias.ctypes.data)
    assert _untouched(whole, out)
    np.testing.assert_array_equal(
        out, kernels.conv2d(x, w, bias, activation="relu", dtype="bfloat16", **case.geometry)
    )


def test_tensors_tell_their_type() -> None:
    torch = pytest.importorskip("torch")
    case = CASES[1]
    x, w = _operands(case)
    tensors = (torch.from_numpy(one.view(np.int16)).view(torch.bfloat16) for one in (x, w))
    y = kernels.conv2d(*tensors, **case.geometry)
    assert y.dtype is torch.bfloat16
    np.testing.assert_array_equal(
        y.view(torch.int16).numpy().view(np.uint16),
        kernels.conv2d(x, w, dtype="bfloat16", **case.geometry),
    )


def test_arrays_of_ml_dtypes_tell_their_type() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    case = CASES[1]
    x, w = _operands(case)
    y = kernels.conv2d(x.view(bfloat16), w.view(bfloat16), **case.geometry)
    assert y.dtype == bfloat16
    np.testing.assert_array_equal(
        y.view(np.uint16), kernels.conv2d(x, w, dtype="bfloat16", **case.geometry)
    )


X, W = np.ones((1, 6, 6, 4), np.uint16), np.ones((3, 3, 3, 4), np.uint16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "half"}, "dtype: expected 'float32' or 'bfloat16'; got 'half'"),
        ({"dtype": 3}, "dtype: expected"),
        ({"dtype": None}, "x: expected float32; got another element type"),
        ({"algorithm": "im2row"}, r"bfloat16 \(convgemm, convgemm_bf16, winograd2.*; got im2row"),
        ({"x": X.astype(np.float32)}, "x: expected bfloat16"),
        ({"w": W.astype(np.float32)}, "w: expected bfloat16"),
        ({"bias": np.ones(3, np.uint16)}, "bias: expected float32"),
        ({"residual": np.ones((1, 4, 4, 3), np.float32)}, "residual: expected bfloat16"),
        ({"out": np.ones((1, 4, 4, 3), np.float32)}, "out: expected bfloat16"),
    ],
)
def test_other_types_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelError, match=said):
        kernels.conv2d(**{"x": X, "w": W, "dtype": "bfloat16", **change})


def test_the_overlap_of_halves_is_seen() -> None:
    """Two arrays, each as many elements apart as it is long: their bytes touch only at the end."""
    whole = np.ones(4 * 36 + 3 * 16, np.uint16)
    x, out = whole[: 4 * 36].reshape(1, 6, 6, 4), whole[4 * 36 :].reshape(1, 4, 4, 3)
    kernels.conv2d(x, W, out=out, dtype="bfloat16")
    with pytest.raises(KernelError, match="out: expected memory of its own; it overlaps x"):
        kernels.conv2d(x, W, out=whole[4 * 36 - 1 : -1].reshape(1, 4, 4, 3), dtype="bfloat16")


def test_gradients_have_no_bfloat16() -> None:
    for direction in ("backward_input", "backward_weight"):
        assert not kernels.conv2d_algorithms(
            X.shape, W.shape, direction=direction, dtype="bfloat16"
        )


def test_the_promise_of_depthwise_holds_on_layers() -> None:
    for case in DEPTHWISE[:3]:
        y = value_of(
            kernels.conv2d(
                *_operands(case), algorithm="depthwise", dtype="bfloat16", **case.geometry
            )
        )
        wanted = _oracle(case)[0]
        promise = kernels.conv2d_algorithms(
            case.x_shape, case.w_shape, dtype="bfloat16", **case.geometry
        )["depthwise"]
        scale = np.sqrt(np.mean(wanted**2))
        assert np.sqrt(np.mean((y - wanted) ** 2)) <= promise.error_bound * scale
        assert np.abs(y - wanted).max() <= promise.maximum_bound * scale


@pytest.mark.long(every=2)
def test_the_promise_holds_on_layers() -> None:
    """The rms error over the rms of the result, where there are elements enough for it."""
    case = CASES[1]
    draw = np.random.default_rng(3)
    x, w = (
        draw.standard_normal(case.x_shape, np.float32),
        draw.standard_normal(case.w_shape, np.float32),
    )
    exact = convolution.forward(case, x, w)
    results: list[tuple[NDArray[np.float32], convolution.Float64]] = [
        (kernels.conv2d(x, w, algorithm=NAME, **case.geometry), exact),
        (
            value_of(kernels.conv2d(*_operands(case), dtype="bfloat16", **case.geometry)),
            _oracle(case)[0],
        ),
    ]
    for (y, wanted), dtype in zip(results, ("float32", "bfloat16"), strict=True):
        promise = kernels.conv2d_algorithms(
            case.x_shape, case.w_shape, dtype=dtype, **case.geometry
        )[NAME]
        assert np.sqrt(np.mean((y - wanted) ** 2)) <= promise.error_bound * np.sqrt(
            np.mean(wanted**2)
        )
        assert np.abs(y - wanted).max() <= 10 * promise.error_bound * np.sqrt(np.mean(wanted**2))
