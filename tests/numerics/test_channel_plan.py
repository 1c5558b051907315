"""Channels gathered from several arrays: copies, which are exact, and norms against float64."""

from __future__ import annotations

import numpy as np
import pytest
from activation import REFERENCES
from bfloat16 import UNIT, rounded, value_of
from fenced_memory import at_the_end
from guarded import address, guarded
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.problem import Activation

# Pixels, channels of the arrays, groups, first channel, channels.
CASES = (
    (784, (58, 58), 2, 0, 58),
    (196, (116, 116), 2, 116, 116),
    (49, (232, 232), 2, 0, 464),
    (9, (58, 58), 2, 3, 61),
    (5, (10, 22), 2, 1, 30),
    (7, (31,), 1, 0, 31),
    (7, (100,), 1, 17, 33),
    (33, (1, 16, 17, 64, 3), 1, 2, 97),
    (6, (20, 10), 3, 0, 30),
    (6, (20, 10), 3, 4, 13),
    (1, (1, 1), 2, 1, 1),
    (3, (12,), 12, 5, 4),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_channels_and_nothing_beside_them(
    case: tuple[int, tuple[int, ...], int, int, int], dtype: str
) -> None:
    pixels, widths, groups, start, count = case
    bits: type = np.uint32 if dtype == "float32" else np.uint16
    rng = np.random.default_rng(3)
    arrays = [at_the_end(rng.integers(0, 2**16, (pixels, n)).astype(bits)) for n in widths]
    joined: NDArray[np.generic] = np.concatenate(arrays, axis=1)
    shuffled = joined.reshape(pixels, groups, -1).swapaxes(1, 2).reshape(pixels, -1)
    plan = kernels.ChannelPlan(pixels, widths, groups=groups, start=start, count=count, dtype=dtype)
    whole = np.full(pixels * count + 128, 77777 % 2**16, bits)
    plan.run([one.ctypes.data for one in arrays], whole[64:].ctypes.data)
    assert (whole[:64] == 77777 % 2**16).all()
    assert (whole[-64:] == 77777 % 2**16).all()
    np.testing.assert_array_equal(
        whole[64:-64].reshape(pixels, count), shuffled[:, start : start + count]
    )


# Pixels, channels of the arrays: pieces of whole vectors and of parts of them, less than a vector,
# one array, many, one pixel, and enough for several threads.
NORMS = (
    (784, (64, 32, 32)),
    (49, (256,) + (32,) * 24),
    (9, (12, 12, 12, 5)),
    (33, (100,)),
    (7, (1, 16, 17, 64, 3)),
    (5, (47, 31, 8, 4, 2)),
    (1, (1,)),
    (1, (70, 9)),
)
EPS = 2.0**-24


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", REFERENCES, ids=str)
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_a_norm_of_pieces(
    case: tuple[int, tuple[int, ...]], activation: Activation, dtype: str
) -> None:
    pixels, widths = case
    rng, count = np.random.default_rng(7), sum(widths)
    halves = dtype == "bfloat16"

    def normal(*shape: int) -> NDArray[np.generic]:
        drawn = rng.standard_normal(shape, dtype=np.float32) * 3
        return at_the_end(rounded(drawn) if halves else drawn)

    def exact(values: NDArray[np.generic]) -> NDArray[np.float64]:
        return (value_of(values) if halves else values).astype(np.float64)

    pieces, residual = [normal(pixels, one) for one in widths], normal(pixels, count)
    scale, shift = (rng.standard_normal(count, dtype=np.float32) for _ in range(2))
    plan = kernels.ChannelPlan(
        pixels, widths, scale=scale, shift=shift, activation=activation, dtype=dtype
    )
    product = np.concatenate([exact(one) for one in pieces], axis=1) * scale
    reference = REFERENCES[activation]
    for added in (None, residual):
        plus = 0.0 if added is None else exact(added)
        with guarded(pixels, count, dtype=np.uint16 if halves else np.float32) as out:
            plan.run([address(one) for one in pieces], address(out), address(added))
            got = exact(out)
        sums = product + shift + plus
        # Each of three operations rounds half a unit of what it has. The activations err by a few
        # units of their argument, as GELU does, or of their result.
        error = 1.001 * EPS * (3 * abs(product) + 2 * abs(shift) + abs(plus))
        wanted = reference.value(sums)
        bound = reference.steepest * error + 16 * EPS * abs(sums) * (activation is not None)
        if halves:
            bound = bound + UNIT * (abs(wanted) + bound)
        assert (abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_a_norm_keeps_nan_and_infinity(activation: Activation) -> None:
    x = np.ones((3, 21), np.float32)
    x[0, 2], x[1, 20], x[2, 0] = np.nan, np.inf, -np.inf
    scale, shift = np.full(21, 2, np.float32), np.zeros(21, np.float32)
    with guarded(3, 21) as out:
        kernels.ChannelPlan(3, [21], scale=scale, shift=shift, activation=activation).run(
            [address(x)], address(out)
        )
        np.testing.assert_array_equal(out, REFERENCES[activation].value(2.0 * x))


def test_the_numbers_of_a_norm_are_copied() -> None:
    x, scale, shift = (np.full(shape, 3, np.float32) for shape in ((2, 5), 5, 5))
    plan = kernels.ChannelPlan(2, [5], scale=scale, shift=shift)
    scale[:] = shift[:] = np.nan
    with guarded(2, 5) as out:
        plan.bind([address(x)], address(out))()
        assert (out == 12).all()


def test_bad_arguments() -> None:
    row = np.ones(6, np.float32)
    for message, arguments, options in (
        ("pixels, widths: expected 1 or more", (0, [3]), {}),
        ("pixels, widths: expected 1 or more", (2, [3, 0]), {}),
        ("groups: expected a divisor of 6", (2, [3, 3]), {"groups": 4}),
        ("start, count: expected a part of 6", (2, [3, 3]), {"start": 2, "count": 5}),
        ("start, count: expected a part of 6", (2, [3, 3]), {"start": -1}),
        ("scale, shift: expected both", (2, [3, 3]), {"scale": row}),
        ("scale, shift: expected both", (2, [3, 3]), {"shift": row}),
        ("scale, shift: expected both", (2, [3, 3]), {"activation": "relu"}),
        ("scale: expected shape", (2, [3]), {"scale": row, "shift": row[:3]}),
        ("shift: expected shape", (2, [6]), {"scale": row, "shift": row[:3]}),
        ("scale: expected float32", (2, [6]), {"scale": row.astype(int), "shift": row}),
        ("without a shuffle", (2, [6]), {"scale": row, "shift": row, "groups": 2}),
        ("activation: expected", (2, [6]), {"scale": row, "shift": row, "activation": "tan"}),
    ):
        with pytest.raises(KernelError, match=message):
            kernels.ChannelPlan(*arguments, **options)
    plan = kernels.ChannelPlan(2, [3, 3])
    for sources in ([1], [1, 0]):
        with pytest.raises(KernelError, match="addresses: expected 2 sources"):
            plan.run(sources, 1)
    with pytest.raises(KernelError, match="addresses: expected integers"):
        plan.run([1, "two"], 1)
    with pytest.raises(KernelError, match="residual: expected none"):
        plan.run([1, 2], 1, 3)


@pytest.mark.parametrize(
    "run", [(-1, 4, 0, 1, 0), (0, 4, 3, 2, 0), (0, 4, -1, 2, 0), (0, 4, 0, 0, 0), (0, 4, 0, 2, 5)]
)
def test_the_extension_reads_nothing_beyond_its_arguments(run: tuple[int, ...]) -> None:
    with pytest.raises(KernelError, match="runs: expected channels of a source"):
        _native.ChannelPlan(1, 6, 1, "float32", [run])
