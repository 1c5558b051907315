"""convgemm_bf16 at every edge of the blocks that tile registers multiply, on every instruction
set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import convolution
import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from convolution import Case
from fenced_memory import at_the_end
from instruction_set import BFLOAT16_ISAS, forced

from bestof import kernels

NAME = "convgemm_bf16"
EPSILON = float(np.finfo(np.float32).eps) / 2
TINY = float(np.finfo(np.float32).tiny)
POISON = 0x7FC1


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and the instruction set that has the products in hardware."""
    yield from forced(request.param)


def _case(
    x: tuple[int, int, int, int], outputs: int, kernel: tuple[int, int], **options: object
) -> Case:
    groups = options.get("groups", 1)
    assert isinstance(groups, int)
    return Case(x, (outputs, *kernel, x[3] // groups), **options)  # type: ignore[arg-type]


# Channels that fill steps of depth, miss or exceed them by one, or take one for many taps; results
# that fill a panel or not; images that end inside a tile at every place.
CHANNELS = tuple(
    _case((2, 5, 7, c), k, (3, 3), padding=((1, 1), (1, 1)))
    for c, k in product((1, 3, 31, 32, 33, 63, 64, 65, 96), (1, 31, 33, 64))
)
EXTENTS = tuple(
    _case((2, h, w, c), 33, (3, 3), padding=((1, 1), (1, 1)))
    for c in (5, 32)
    for h, w in ((1, 1), (1, 33), (2, 2), (3, 15), (4, 16), (5, 17), (7, 7), (16, 3), (33, 1))
)
# Strides and dilations of every common divisor: the planes of a spread image. Pads that differ,
# exceed the kernel, or leave lines of zeros alone.
PLANES = tuple(
    _case(
        (2, 11, 13, c),
        35,
        kernel,
        stride=(stride, 5 - stride),
        dilation=(dilation, 1 + dilation % 3),
        padding=pads,
    )
    for c in (4, 32)
    for stride in (1, 2, 3, 4)
    for dilation in (1, 2, 3, 4)
    for kernel, pads in (
        ((3, 2), ((1, 0), (0, 1))),
        ((2, 4), ((3, 5), (7, 2))),
        ((3, 3), ((0, 3), (3, 0))),
    )
    if dilation * (kernel[0] - 1) < 11 + sum(pads[0])
    and (1 + dilation % 3) * (kernel[1] - 1) < 13 + sum(pads[1])
)
# Images smaller than the kernel, and pads without any image between them.
SMALL = tuple(
    _case((n, h, w, c), 40, (5, 5), stride=(s, s), padding=((pad, 4), (4, pad)))
    for c in (3, 32)
    for n, h, w, s, pad in ((1, 1, 1, 1, 4), (3, 2, 1, 1, 2), (2, 1, 3, 2, 9), (2, 3, 3, 3, 8))
)
GROUPS = tuple(
    _case(
        (2, 6, 5, groups * c), groups * k, (3, 3), padding=((1, 1), (2, 0)), groups=groups, stride=s
    )
    for groups, c, k in ((2, 32, 32), (3, 31, 5), (2, 40, 33), (4, 4, 4), (5, 1, 3), (2, 65, 70))
    for s in ((1, 1), (2, 1))
)
POINTWISE = tuple(
    _case((2, 6, 7, c), k, (1, 1), stride=s, padding=pads)
    for c, k in ((3, 5), (64, 64), (130, 33))
    for s, pads in (
        ((1, 1), ((0, 0), (0, 0))),
        ((2, 2), ((0, 0), (0, 0))),
        ((2, 3), ((1, 2), (0, 1))),
        ((1, 1), ((1, 0), (0, 2))),
    )
)
# Depth in chunks, many blocks of each kind, and blocks that several threads share.
LARGE = (
    _case((1, 30, 21, 64), 70, (3, 3), padding=((1, 1), (1, 1))),
    _case((3, 7, 7, 160), 96, (3, 3), padding=((1, 1), (1, 1))),
    _case((1, 150, 120, 32), 8, (3, 3), stride=(2, 1), padding=((1, 1), (1, 1))),
    _case((1, 9, 700, 128), 8, (3, 3), padding=((1, 1), (1, 1))),
    _case((2, 60, 40, 3), 64, (7, 7), stride=(2, 2), padding=((3, 3), (3, 3))),
    _case((1, 40, 33, 20), 170, (3, 3), padding=((1, 1), (1, 1))),
    _case((2, 40, 30, 260), 5, (1, 1)),
    _case((1, 4, 4, 33), 300, (5, 5), padding=((2, 2), (2, 2))),
)
CASES = (*CHANNELS, *EXTENTS, *PLANES, *SMALL, *GROUPS, *POINTWISE, *LARGE)


def _check(case: Case, dtype: str, threads: int, seed: int) -> None:
    """Operands end where memory ends; sums in any order err by eps * (terms + 2) * magnitudes."""
    draw = np.random.default_rng(seed)
    x, w = (rounded(draw.standard_normal(s, np.float32)) for s in (case.x_shape, case.w_shape))
    exact = value_of(x), value_of(w)
    bias = draw.standard_normal(case.w_shape[0], np.float32)
    residual = rounded(draw.standard_normal(case.y_shape, np.float32))
    wanted = convolution.forward(case, *exact) + bias + value_of(residual)
    sums = convolution.forward(case, *map(np.abs, exact)) + abs(bias) + abs(value_of(residual))
    bound = EPSILON * (np.prod(case.w_shape[1:]) + 3) * sums + TINY
    size = wanted.size
    if dtype == "bfloat16":
        whole = np.full(size + 128, POISON, np.uint16)
        operands, added = (x, w), residual
        bound = UNIT * np.abs(wanted) + (1 + UNIT) * bound
    else:
        whole = np.full(size + 128, np.nan, np.float32)
        operands, added = exact, value_of(residual)
    out = whole[64 : 64 + size].reshape(case.y_shape)
    kernels.conv2d(
        *map(at_the_end, operands),
        at_the_end(bias),
        residual=at_the_end(added),
        out=out,
        algorithm=NAME,
        dtype=dtype,
        threads=threads,
        **case.geometry,
    )
    guards = np.concatenate([whole[:64], whole[-64:]])
    assert (guards == POISON if dtype == "bfloat16" else np.isnan(guards)).all(), case
    values = value_of(out) if dtype == "bfloat16" else out
    assert (np.abs(values - wanted) <= bound).all(), case


# One test has many cases: with a test for each, pytest took more time than the kernels.
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_edges_of_blocks(dtype: str, every: int) -> None:
    for index, case in enumerate(CASES[:: 1 if _has_tiles() else every]):
        _check(case, dtype, 1 + index % 2, index)


def _has_tiles() -> bool:
    """Return whether the instruction set in force is the one whose blocks these are."""
    return kernels.isa() == "amx_bf16"


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_threads_share_blocks(case: Case) -> None:
    for threads in (3, 8) if _has_tiles() else (3,):
        _check(case, "bfloat16", threads, threads)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("channels", [3, 33, 64])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_pixel_of_nan_reaches_the_results_that_read_it(
    channels: int, stride: int, dtype: str
) -> None:
    """No other results: they share tiles, blocks and padding with it."""
    case = _case(
        (2, 7, 9, channels),
        34,
        (3, 3),
        stride=(stride, stride),
        padding=((1, 1), (1, 1)),
    )
    for pixel in ((0, 0, 0, 0), (0, 6, 8, channels - 1), (1, 3, 4, 1), (1, 0, 8, 0), (0, 2, 0, 2)):
        x, w = np.ones(case.x_shape, np.float32), np.ones(case.w_shape, np.float32)
        x[pixel] = np.nan
        wanted = np.isnan(convolution.forward(case, x, w))
        halves = [(one.view(np.uint32) >> 16).astype(np.uint16) for one in (x, w)]  # exact
        operands = [x, w] if dtype == "float32" else halves
        y = kernels.conv2d(*operands, algorithm=NAME, dtype=dtype, **case.geometry)
        np.testing.assert_array_equal(np.isnan(y if dtype == "float32" else value_of(y)), wanted)
