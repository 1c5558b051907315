"""Channels gathered from several arrays: copies, so results are exact."""

from __future__ import annotations

import numpy as np
import pytest
from fenced_memory import at_the_end
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import _native

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


def test_bad_arguments() -> None:
    for message, arguments, options in (
        ("pixels, widths: expected 1 or more", (0, [3]), {}),
        ("pixels, widths: expected 1 or more", (2, [3, 0]), {}),
        ("groups: expected a divisor of 6", (2, [3, 3]), {"groups": 4}),
        ("start, count: expected a part of 6", (2, [3, 3]), {"start": 2, "count": 5}),
        ("start, count: expected a part of 6", (2, [3, 3]), {"start": -1}),
    ):
        with pytest.raises(KernelError, match=message):
            kernels.ChannelPlan(*arguments, **options)
    plan = kernels.ChannelPlan(2, [3, 3])
    for sources in ([1], [1, 0]):
        with pytest.raises(KernelError, match="addresses: expected 2 sources"):
            plan.run(sources, 1)
    with pytest.raises(KernelError, match="addresses: expected integers"):
        plan.run([1, "two"], 1)


@pytest.mark.parametrize(
    "run", [(-1, 4, 0, 1, 0), (0, 4, 3, 2, 0), (0, 4, -1, 2, 0), (0, 4, 0, 0, 0), (0, 4, 0, 2, 5)]
)
def test_the_extension_reads_nothing_beyond_its_arguments(run: tuple[int, ...]) -> None:
    with pytest.raises(KernelError, match="runs: expected channels of a source"):
        _native.ChannelPlan(1, 6, 1, "float32", [run])
