"""Results in a part of the channels of wider pixels: the same bits, and nothing beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from bfloat16 import rounded
from convolution import DEPTHWISE, OF_ROWS, Case
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import _native

Bits = NDArray[np.generic]

# Few tiles and blocks of many, results of whole vectors and of parts of them, a batch, one pixel.
CASES = (
    *OF_ROWS,
    *DEPTHWISE[::3],
    Case((1, 13, 13, 16), (64, 1, 1, 16)),
    Case((2, 9, 7, 40), (33, 1, 1, 40)),
    Case((1, 27, 27, 32), (128, 3, 3, 32), padding=((1, 1), (1, 1))),
    Case((2, 61, 50, 4), (16, 3, 3, 4), padding=((1, 1), (1, 1))),
    Case((1, 1, 1, 5), (3, 1, 1, 5)),
    Case((2, 12, 15, 24), (48, 3, 3, 6), (1, 1), ((1, 1), (1, 1)), groups=4),
    Case((1, 30, 40, 3), (20, 3, 3, 3), (2, 2), ((1, 1), (1, 1))),
    Case((1, 21, 9, 1024), (40, 1, 1, 1024)),
)
# Channels before the part, and behind it. With 16 on either side, rows are streamed.
BESIDE = ((0, 16), (16, 16), (3, 10))


def _part(
    run: Callable[[int, int | None], object], shape: tuple[int, ...], like: type
) -> tuple[Bits, list[Bits]]:
    """Return results that lie side by side, and as parts; runs get the address and the pitch."""
    nan, *pixels, channels = np.nan if like is np.float32 else 0x7FC0, *shape
    alone = np.full(shape, nan, like)
    run(alone.ctypes.data, None)
    found = []
    for before, behind in BESIDE:
        pitch = before + channels + behind
        memory = np.full(int(np.prod(pixels)) * pitch + 64, nan, like)
        skipped = 16 + -memory[16:].ctypes.data % 64 // memory.itemsize
        whole = memory[skipped : skipped + int(np.prod(pixels)) * pitch].reshape(*pixels, pitch)
        whole[...] = np.arange(pitch)  # which are not NaN: a copy of neighbours shows as well
        whole[..., before : before + channels] = nan
        beside = np.delete(whole, np.s_[before : before + channels], axis=-1)
        ends = memory[:skipped].tobytes(), memory[skipped + whole.size :].tobytes()
        run(whole.ctypes.data + before * whole.itemsize, pitch)
        assert (memory[:skipped].tobytes(), memory[skipped + whole.size :].tobytes()) == ends
        after = np.delete(whole, np.s_[before : before + channels], axis=-1)
        np.testing.assert_array_equal(after, beside, err_msg="it wrote to its neighbours")
        found.append(whole[..., before : before + channels])
    return alone, found


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Bits:
    values = rng.standard_normal(shape, np.float32)
    return values if dtype == "float32" else rounded(values)


@pytest.mark.parametrize("last_cache", [0, 1], ids=["", "streamed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case: Case, dtype: str, last_cache: int) -> None:
    rng = np.random.default_rng(3)
    x, w = _numbers(rng, case.x_shape, dtype), _numbers(rng, case.w_shape, dtype)
    bias = rng.standard_normal(case.w_shape[0], np.float32)
    rows = kernels.conv2d_algorithms(case.x_shape, case.w_shape, dtype=dtype, **case.geometry)
    pitching = [name for name, row in rows.items() if row.pitches]
    assert pitching or dtype == "bfloat16"
    _native.assume_level3(last_cache)
    try:
        for name in pitching:
            weights = w.ctypes.data
            if rows[name].packs:
                weights = kernels.pack_weights(w, name, groups=case.groups, dtype=dtype)
            for activation in ("relu", "silu"):

                def run(
                    out: int,
                    pitch: int | None,
                    name: str = name,
                    activation: str = activation,
                    weights: object = weights,
                ) -> None:
                    plan = kernels.Conv2dPlan(
                        case.x_shape,
                        case.w_shape,
                        algorithm=name,
                        activation=activation,
                        dtype=dtype,
                        pitch=pitch,
                        **case.geometry,
                    )
                    plan.run(x.ctypes.data, weights, out, bias.ctypes.data)

                alone, parts = _part(run, case.y_shape, x.dtype.type)
                for one in parts:
                    np.testing.assert_array_equal(one, alone, err_msg=name)
    finally:
        _native.assume_level3(0)


@pytest.mark.parametrize("filters", [5, 16, 70])
def test_a_first_layer_of_planes(filters: int) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((2, 3, 19, 23), np.float32)
    w = rng.standard_normal((filters, 3, 3, 3), np.float32)
    packed = kernels.pack_weights(w, "direct")

    def plan(pitch: int | None) -> kernels.Conv2dPlan:
        fixed = {"algorithm": "direct", "stride": 2, "x_layout": "channels_first"}
        return kernels.Conv2dPlan(x.shape, w.shape, pitch=pitch, **fixed)

    alone, parts = _part(
        lambda out, pitch: plan(pitch).run(x.ctypes.data, packed, out),
        plan(None).y_shape,
        np.float32,
    )
    for one in parts:
        np.testing.assert_array_equal(one, alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 20, 169])
@pytest.mark.parametrize("columns", [16, 33, 64])
def test_products(rows: int, columns: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    a, b = _numbers(rng, (rows, 50), dtype), _numbers(rng, (50, columns), dtype)
    bias = rng.standard_normal(columns, np.float32)
    for name, promise in kernels.matmul_algorithms(a.shape, b.shape, dtype=dtype).items():
        if not promise.packs:
            continue
        packed = kernels.pack_matrix(b, algorithm=name, dtype=dtype)

        def run(out: int, pitch: int | None, name: str = name, packed: object = packed) -> None:
            strides = None if pitch is None else (pitch, 1)
            plan = kernels.MatmulPlan(
                *((rows, 50), (50, columns)), out_strides=strides, algorithm=name, dtype=dtype
            )
            plan.run(a.ctypes.data, packed, out, bias.ctypes.data)

        alone, parts = _part(run, (rows, columns), a.dtype.type)
        for one in parts:
            np.testing.assert_array_equal(one, alone, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (5, 3)])
@pytest.mark.parametrize("channels", [3, 17, 64, 150])
def test_poolings(channels: int, kernel: int, stride: int, kind: str, dtype: str) -> None:
    shape = 2, 9, 12, channels
    x = _numbers(np.random.default_rng(5), shape, dtype)

    def plan(pitch: int | None) -> kernels.Pool2dPlan:
        return kernels.Pool2dPlan(
            *(shape, kernel), kind=kind, stride=stride, padding=1, dtype=dtype, pitch=pitch
        )

    alone, parts = _part(
        lambda out, pitch: plan(pitch).run(x.ctypes.data, out), plan(None).y_shape, x.dtype.type
    )
    for one in parts:
        np.testing.assert_array_equal(one, alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [5, 64])
def test_copies(channels: int, dtype: str) -> None:
    x = _numbers(np.random.default_rng(6), (400, channels), dtype)
    alone, parts = _part(
        lambda out, pitch: kernels.ChannelPlan(400, [channels], pitch=pitch, dtype=dtype).run(
            [x.ctypes.data], out
        ),
        x.shape,
        x.dtype.type,
    )
    np.testing.assert_array_equal(alone, x)
    for one in parts:
        np.testing.assert_array_equal(one, x)


def test_a_concatenation_leaves_what_it_holds() -> None:
    widths, rng = (16, 5, 33), np.random.default_rng(7)
    arrays = [rng.standard_normal((30, n), np.float32) for n in widths]
    whole = np.full((30, 54), 7.0, np.float32)
    plan = kernels.ChannelPlan(30, widths, held=[1])
    plan.run([one.ctypes.data for one in arrays], whole.ctypes.data)
    arrays[1][...] = 7.0
    np.testing.assert_array_equal(whole, np.concatenate(arrays, 1))


def test_a_pitch_that_does_not_fit_is_refused() -> None:
    x, w = (1, 16, 16, 3), (8, 7, 7, 3)
    for given, message in ((7, "8 or more"), (0, "1 to 2"), (2**31, "1 to 2"), ("8", "an integer")):
        with pytest.raises(KernelError, match=f"pitch: expected {message}"):
            kernels.Conv2dPlan(x, w, algorithm="direct", pitch=given)
        with pytest.raises(KernelError, match=f"pitch: expected {message}"):
            kernels.Pool2dPlan((1, 4, 4, 8), 2, pitch=given)
        with pytest.raises(KernelError, match=f"pitch: expected {message}"):
            kernels.ChannelPlan(3, [8], pitch=given)
    row = np.ones(8, np.float32)
    for options in ({"groups": 2}, {"scale": row, "shift": row}):
        with pytest.raises(KernelError, match="expected none for a channel shuffle or a norm"):
            kernels.ChannelPlan(3, [8], pitch=9, **options)
    with pytest.raises(KernelError, match="writes pixels apart; got winograd3_7x7_s2"):
        kernels.Conv2dPlan(x, w, stride=2, algorithm="winograd3_7x7_s2", pitch=9)
    with pytest.raises(KernelError, match="writes pixels apart; got convgemm"):
        kernels.Conv2dPlan(x, w, algorithm="convgemm", direction="backward_input", pitch=9)
    with pytest.raises(KernelError, match="pitch: expected none where results are pooled"):
        kernels.Conv2dPlan(x, (8, 3, 3, 3), algorithm="winograd2", pool=True, pitch=9)
    plan = kernels.Conv2dPlan(x, w, algorithm="direct", pitch=9)
    with pytest.raises(KernelError, match="residual: expected none where pixels"):
        plan.run(1, 1, 1, 0, 1)


def test_copies_that_cannot_be_made_are_refused() -> None:
    for given, message in (
        ({"pitch": 7}, "pitch: expected 8 or more"),
        ({"pitch": 20, "groups": 2}, "pitch: expected none for a channel shuffle"),
        ({"held": [2]}, "held: expected places below 2"),
        ({"held": [-1]}, "held: expected places below 2"),
    ):
        with pytest.raises(KernelError, match=message):
            kernels.ChannelPlan(9, [4, 4], **given)  # type: ignore[arg-type]  # of several types
