"""The oracle of convolution in float64, and the problems on which every algorithm is tested."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bestof import kernels

Pads = tuple[tuple[int, int], tuple[int, int]]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """One problem, in the terms of `kernels.conv2d`."""

    x_shape: tuple[int, int, int, int]
    w_shape: tuple[int, int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: Pads = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def geometry(self) -> dict[str, object]:
        """The keyword arguments that describe it."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """The extents of the result."""
        out = []
        for axis in (0, 1):
            room = self.x_shape[1 + axis] + sum(self.padding[axis])
            room -= self.dilation[axis] * (self.w_shape[1 + axis] - 1) + 1
            out.append(room // self.stride[axis] + 1)
        return self.x_shape[0], out[0], out[1], self.w_shape[0]

    def __str__(self) -> str:
        n, h, w, c = self.x_shape
        k, r, s, _ = self.w_shape
        (t, b), (left, right) = self.padding
        text = (
            f"n{n}-{h}x{w}x{c}-k{k}-{r}x{s}-s{self.stride[0]}{self.stride[1]}-p{t}{b}{left}{right}"
        )
        return text + f"-d{self.dilation[0]}{self.dilation[1]}-g{self.groups}"


def _square(n: int, extent: int, c: int, k: int, kernel: int, stride: int, pad: int) -> Case:
    return Case(
        (n, extent, extent, c), (k, kernel, kernel, c), (stride, stride), ((pad, pad), (pad, pad))
    )


# Kernels along one axis: lines, more channels than a panel, extents around a tile, one pixel.
LINES = [
    Case((2, 1, length, channels), (65, 1, taps, channels), padding=((0, 0), (taps // 2,) * 2))
    for taps, length, channels in (
        (3, 33, 70),
        (5, 28, 96),
        (7, 37, 17),
        (3, 4, 3),
        (5, 1, 8),
        (7, 5, 33),
    )
] + [
    Case((1, 19, 6, 33), (40, 7, 1, 33), padding=((3, 3), (0, 0))),
    Case((3, 6, 9, 130), (66, 1, 3, 130), padding=((0, 0), (0, 2))),
]


# Kernels of one long axis, and 5x5: layers of Inception v3 and GoogLeNet first, then awkward ones.
LONG = (
    Case((1, 17, 17, 192), (192, 1, 7, 192), padding=((0, 0), (3, 3))),
    Case((1, 17, 17, 160), (192, 7, 1, 160), padding=((3, 3), (0, 0))),
    _square(1, 28, 16, 32, 5, 1, 2),
    _square(2, 14, 48, 128, 5, 1, 2),
    *(Case((1, 3, extent, 5), (9, 1, 7, 5)) for extent in (7, 8, 10, 11, 12)),
    *(Case((2, extent, 2, 17), (3, 7, 1, 17), padding=((2, 3), (0, 1))) for extent in (2, 5, 6, 7)),
    *(_square(1, extent, 33, 3, 5, 1, 0) for extent in (5, 6, 8, 9, 10)),
    Case((2, 9, 8, 7), (65, 5, 5, 7), padding=((3, 0), (1, 4))),
    Case((1, 1, 1, 3), (1, 1, 7, 3), padding=((2, 2), (6, 6))),
    Case((0, 8, 8, 4), (4, 5, 5, 4), padding=((2, 2), (2, 2))),
)

# Kernels of 3x3 and stride 2: layers of ResNet34, then images that end inside a tile at every
# place, then awkward channels. A stride of 2 splits the image into four; the vectors of such
# channels end inside those of the next image.
STRIDED = (
    _square(1, 56, 64, 128, 3, 2, 1),
    _square(2, 14, 256, 512, 3, 2, 1),
    *(_square(1, extent, 17, 9, 3, 2, 1) for extent in range(1, 24)),
    *(_square(2, 11, c, k, 3, 2, 0) for c, k in ((1, 1), (3, 65), (15, 17), (33, 31))),
    Case((3, 10, 7, 20), (40, 3, 3, 20), (2, 2), ((2, 0), (0, 3))),
    Case((1, 4, 60, 18), (5, 3, 3, 18), (2, 2), ((0, 1), (4, 4))),
    Case((0, 8, 8, 4), (4, 3, 3, 4), (2, 2), ((1, 1), (1, 1))),
)

# Kernels of 7x7 and stride 2: a small first layer of ResNet, then images that end inside a tile of
# three rows of results at every place, awkward channels, and pads that differ or exceed the image.
STEMS = (
    _square(2, 64, 3, 64, 7, 2, 3),
    *(_square(1, extent, 3, 5, 7, 2, 3) for extent in range(1, 14)),
    *(_square(2, 17, c, k, 7, 2, 0) for c, k in ((1, 1), (4, 65), (9, 33), (17, 31))),
    Case((1, 12, 9, 2), (7, 7, 7, 2), (2, 2), ((0, 4), (5, 1))),
    Case((1, 2, 40, 3), (33, 7, 7, 3), (2, 2), ((6, 2), (0, 7))),
    Case((0, 16, 16, 3), (4, 7, 7, 3), (2, 2), ((3, 3), (3, 3))),
)

# Images that end inside a tile of 2x2, 4x4 or 6x6 results at every place along either axis. Such
# tiles have fewer frequencies. The small problems run in phases, the others in blocks that begin
# and end anywhere in a row.
SHORT_TILES = tuple(
    Case((n, rows, columns, 3), (5, 3, 3, 3), padding=((1, 1), (1, 1)))
    for n, most in ((3, 12), (2, 60))
    for rows in range(most - 11, most + 1)
    for columns in (most - 11 + 5 * rows % 12, most - 11 + (7 * rows + 1) % 12)
)

# Pads beyond the reach of the kernel, which the input gradient crops. Pixels lie behind the last
# results, so the last tile may read them although fewer of its results are wanted. A whole vector
# of channels takes the path without masks.
CROPPED = tuple(
    Case((1, rows, rows + pad % 3, 3), (17, 3, 3, 3), padding=((pad % 4, pad), (pad % 3, pad)))
    for pad in range(3, 9)
    for rows in range(8, 20)
)

# Linear layers of few rows: the last one of VGG16; every number of rows, with outputs that leave a
# part of a block over; few inputs.
FEW_ROWS = (
    Case((1, 1, 1, 4096), (1000, 1, 1, 4096)),
    *(Case((1, 1, rows, 16 * rows + 3), (37 - rows, 1, 1, 16 * rows + 3)) for rows in range(1, 9)),
    *(Case((2, 2, 1, inputs), (3, 1, 1, inputs)) for inputs in (1, 5, 8, 31)),
)

# A few problems of every kernel size and stride of the table, so that no row is missed.
OF_ROWS = tuple(
    Case((n, h + r, w + s, c), (k, r, s, c), (stride, stride), ((r // 2, 0), (1, s // 2)))
    for (r, s), stride in sorted(
        {
            (row.kernel, row.stride)
            for row in kernels.algorithms().values()
            if row.kernel is not None and row.stride is not None
        }
    )
    for n, h, w, c, k in ((1, 4, 11, 3, 17), (2, 13, 6, 19, 5))
)


def _depthwise(n: int, extent: int, c: int, kernel: int, stride: int, pad: int) -> Case:
    return replace(
        _square(n, extent, 1, c, kernel, stride, pad), x_shape=(n, extent, extent, c), groups=c
    )


# Depthwise kernels: layers of ConvNeXt and MobileNet, then rows of results that end inside a block
# at every place, kernels and strides with code of their own and others, awkward channels, pads
# that differ or exceed the image, and dilation.
DEPTHWISE = (
    _depthwise(1, 14, 96, 7, 1, 3),
    _depthwise(2, 7, 48, 7, 1, 3),
    _depthwise(1, 28, 32, 3, 2, 1),
    *(_depthwise(1, extent, 17, 7, 1, 3) for extent in (1, 2, 6, 8, 9, 13, 15)),
    *(
        _depthwise(1, 15, 33, kernel, stride, 1)
        for kernel in (1, 2, 3, 4, 5, 7, 9)
        for stride in (1, 2, 3)
    ),
    *(_depthwise(3, 10, c, 3, 1, 1) for c in (1, 3, 15, 16, 31)),
    Case((2, 11, 9, 20), (20, 3, 7, 1), (1, 2), ((2, 0), (5, 3)), (1, 1), 20),
    Case((1, 3, 4, 18), (18, 5, 5, 1), (1, 1), ((7, 6), (9, 8)), (1, 1), 18),
    Case((1, 12, 13, 5), (5, 3, 3, 1), (1, 1), ((4, 4), (6, 6)), (4, 6), 5),
    Case((1, 2, 30, 40), (40, 3, 5, 1), (1, 1), ((5, 5), (2, 2)), (5, 1), 40),
    Case((0, 8, 8, 4), (4, 3, 3, 1), (1, 1), ((1, 1), (1, 1)), (1, 1), 4),
)


def _grouped(extent: int, c: int, inputs: int, kernel: int, stride: int, pad: int) -> Case:
    one = _square(1, extent, inputs, c, kernel, stride, pad)
    return replace(one, x_shape=(1, extent, extent, c), groups=c // inputs)


# Few channels a group: layers of ResNeXt and RegNet, then every number of channels that shares a
# vector and some that do not, the last vector not filled; rows of results that end inside a block,
# alone and in pairs; kernels and strides with code of their own and others; rows longer than the
# lines that L1 holds; pads that differ or exceed the image, and dilation.
GROUPED = (
    _grouped(28, 128, 4, 3, 1, 1),
    _grouped(14, 160, 16, 3, 1, 1),
    _grouped(14, 96, 24, 3, 2, 1),
    *(_grouped(9, 5 * inputs, inputs, 3, 1, 1) for inputs in (2, 3, 4, 8, 12, 16, 17, 32, 40, 64)),
    *(_grouped(extent, 24, 8, 3, 1, 1) for extent in (1, 2, 7, 8, 15, 22)),
    # One, two and four vectors a group; blocks of several rows of tiles, the last one shorter; an
    # image wider than a block; another number of outputs than of inputs.
    *(_grouped(extent, 2 * c, c, 3, 1, 1) for extent in (5, 14, 21) for c in (16, 48)),
    Case((2, 9, 70, 36), (60, 3, 3, 12), padding=((1, 0), (2, 3)), groups=3),
    Case((1, 14, 13, 34), (18, 3, 3, 17), padding=((0, 1), (1, 1)), groups=2),
    *(_grouped(15, 20, 4, kernel, stride, 1) for kernel in (2, 3, 5) for stride in (1, 2, 3)),
    *(_grouped(11, 38, 19, kernel, stride, 2) for kernel in (2, 3, 5) for stride in (1, 2, 3)),
    Case((2, 3, 250, 66), (66, 3, 3, 33), (1, 2), ((1, 1), (1, 1)), (1, 1), 2),
    Case((2, 11, 9, 20), (20, 3, 5, 4), (2, 1), ((2, 0), (5, 3)), (1, 1), 5),
    Case((1, 3, 4, 18), (18, 5, 5, 9), (1, 1), ((7, 6), (9, 8)), (1, 1), 2),
    Case((1, 12, 13, 32), (32, 3, 3, 8), (1, 1), ((4, 4), (6, 6)), (4, 6), 4),
    Case((0, 8, 8, 4), (4, 3, 3, 2), (1, 1), ((1, 1), (1, 1)), (1, 1), 2),
)

CASES = (
    # Layers of VGG16 and ResNet50, asymmetric kernels of GoogLeNet, depthwise ones of MobileNet.
    _square(1, 56, 64, 64, 3, 1, 1),
    _square(2, 14, 256, 256, 3, 1, 1),
    _square(1, 7, 512, 512, 3, 1, 1),
    _square(1, 64, 3, 64, 7, 2, 3),
    _square(1, 28, 3, 64, 3, 1, 1),
    _square(1, 14, 1024, 256, 1, 1, 0),
    # Rows that collide in L1 are copied: with taps and groups, of either element.
    Case((1, 4, 6, 1024), (3, 1, 2, 1024), (1, 2)),
    Case((1, 5, 4, 2048), (6, 2, 2, 1024), (1, 1), ((1, 0), (0, 1)), groups=2),
    _square(2, 28, 64, 96, 1, 2, 0),
    _square(2, 28, 64, 64, 3, 2, 1),
    Case((1, 17, 17, 48), (64, 1, 7, 48), padding=((0, 0), (3, 3))),
    Case((1, 17, 17, 48), (64, 7, 1, 48), padding=((3, 3), (0, 0))),
    Case((2, 14, 14, 96), (96, 3, 3, 1), padding=((1, 1), (1, 1)), groups=96),
    Case((1, 15, 15, 40), (40, 5, 5, 1), (2, 2), ((2, 2), (2, 2)), groups=40),
    Case((1, 14, 14, 64), (64, 3, 3, 4), padding=((1, 1), (1, 1)), groups=16),
    # Awkward channels, extents of a tile plus or minus one, a single pixel, pads that differ, an
    # empty batch.
    *(_square(1, 9, c, k, 3, 1, 1) for c, k in ((1, 1), (3, 17), (17, 65), (65, 3), (33, 31))),
    *(_square(1, extent, 8, 8, 3, 1, 1) for extent in (1, 2, 3, 4, 5, 6, 7, 12, 13)),
    *(_square(2, extent, 5, 9, 3, 1, 0) for extent in (3, 5, 8, 9)),
    Case((2, 11, 8, 7), (9, 3, 3, 7), padding=((2, 0), (0, 1))),
    Case((2, 11, 8, 7), (9, 3, 3, 7), padding=((3, 2), (2, 4))),
    Case((2, 12, 10, 6), (8, 3, 2, 3), (2, 3), ((1, 2), (0, 1)), (2, 1), 2),
    Case((1, 9, 9, 4), (6, 4, 3, 4), (3, 1), ((0, 1), (2, 2)), (1, 3)),
    Case((1, 5, 5, 3), (4, 1, 1, 3), (3, 4)),
    Case((1, 1, 1, 16), (16, 1, 1, 16)),
    Case((1, 9, 6, 8), (8, 3, 3, 1), (2, 1), ((1, 0), (1, 1)), (1, 2), 8),
    Case((0, 8, 8, 4), (4, 3, 3, 4), padding=((1, 1), (1, 1))),
    *LONG,
    *LINES,
    *STRIDED,
    *STEMS,
    *FEW_ROWS,
    *OF_ROWS,
    *DEPTHWISE,
    *GROUPED,
)


def forward(case: Case, x: NDArray[np.generic], w: NDArray[np.generic]) -> Float64:
    """y in float64, tap by tap."""
    y = np.zeros(case.y_shape)
    for window, tap, group_in, group_out in _taps(case):
        y[..., group_out] += (
            _padded(case, x)[window][..., group_in]
            @ w.astype(np.float64)[group_out][(slice(None), *tap)].T
        )
    return y


def backward_input(case: Case, grad: NDArray[np.generic], w: NDArray[np.generic]) -> Float64:
    """The gradient of x in float64: what each tap read, it gives back."""
    padded = np.zeros_like(_padded(case, np.zeros(case.x_shape)))
    for window, tap, group_in, group_out in _taps(case):
        padded[window][..., group_in] += (
            grad.astype(np.float64)[..., group_out]
            @ w.astype(np.float64)[group_out][(slice(None), *tap)]
        )
    (top, _), (left, _) = case.padding
    return padded[:, top : top + case.x_shape[1], left : left + case.x_shape[2]]


def backward_weight(case: Case, grad: NDArray[np.generic], x: NDArray[np.generic]) -> Float64:
    """The gradient of w in float64: a sum over images and pixels."""
    w = np.zeros(case.w_shape)
    for window, tap, group_in, group_out in _taps(case):
        seen = _padded(case, x)[window][..., group_in]
        w[(group_out, *tap)] = np.einsum(
            "nhwk,nhwc->kc", grad.astype(np.float64)[..., group_out], seen, optimize=True
        )
    return w


def _padded(case: Case, x: NDArray[np.generic]) -> Float64:
    return np.pad(x.astype(np.float64), ((0, 0), *case.padding, (0, 0)))


def _taps(case: Case):  # type: ignore[no-untyped-def]  # the type of the slices would hide the code
    _, height, width, _ = case.y_shape
    per_in, per_out = case.w_shape[3], case.w_shape[0] // case.groups
    for group in range(case.groups):
        group_in = slice(group * per_in, (group + 1) * per_in)
        group_out = slice(group * per_out, (group + 1) * per_out)
        for r in range(case.w_shape[1]):
            for s in range(case.w_shape[2]):
                y0, x0 = r * case.dilation[0], s * case.dilation[1]
                rows = slice(y0, y0 + (height - 1) * case.stride[0] + 1, case.stride[0])
                columns = slice(x0, x0 + (width - 1) * case.stride[1] + 1, case.stride[1])
                yield (slice(None), rows, columns), (r, s), group_in, group_out
