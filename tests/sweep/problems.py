"""Draws the problems of the sweep: the n-th of a seed is the same in every process."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from bestof.torch.ops.convolution.problem import ConvProblem

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 64)
KERNELS = (1, 1, 1, 2, 3, 3, 3, 4, 5, 7)
LARGE_KERNELS = (9, 11, 13, 15)
IMAGES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 20, 28, 33)
BATCHES = (1, 1, 2, 2, 3, 5, 17, 32)
SIZES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 256)

FLOPS = 10**8
"""The most operations of a problem. It keeps a case at about a hundredth of a second."""

Layout = Literal["channels_first", "channels_last"]


def convolution(seed: int, index: int) -> ConvProblem:
    """Return the problem of a convolution: any dtype, layout, group, stride, and dilation."""
    random = Random(f"convolution {seed} {index}")
    while True:
        problem = random.choices((_convolution, _pointwise, _thin), (6, 1, 1))[0](random)
        if min(problem.output_size) >= 1 and problem.flops <= FLOPS:
            return problem


def _pointwise(random: Random) -> ConvProblem:
    """Return a convolution of single pixels with strides, which oneDNN copies together first."""
    size = random.choice((*IMAGES, 32, 56))
    channels, filters = random.choice(CHANNELS), random.choice((*CHANNELS, 8, 16, 24, 48))
    groups = random.choice((1, 1, 1, 2, 4))
    return _convolution(random)._replace(
        input_shape=(random.choice(BATCHES), channels * groups, size, size),
        weight_shape=(filters * groups, channels, 1, 1),
        stride=(_one_or(random, (2, 3)), 2),
        padding=(0, 0),
        dilation=(1, 1),
        groups=groups,
    )


def _thin(random: Random) -> ConvProblem:
    """Return a convolution of images of few columns, some of whose results may read none."""
    channels, filters = random.choice(CHANNELS), random.choice(CHANNELS)
    return _convolution(random)._replace(
        input_shape=(random.choice(BATCHES), channels, random.choice(IMAGES), random.randint(1, 3)),
        weight_shape=(filters, channels, random.choice(KERNELS), random.choice((1, 1, 2, 3))),
        padding=(random.randint(0, 2), random.randint(0, 3)),
        groups=1,
    )


def _convolution(random: Random) -> ConvProblem:
    channels, filters, groups = random.choice(CHANNELS), random.choice(CHANNELS), 1
    kind = random.random()
    if kind < 0.15:
        groups = random.choice((2, 3, 4, 8))
    elif kind < 0.25:
        groups, channels, filters = random.choice(CHANNELS), 1, random.choice((1, 1, 1, 2))
    kernels = LARGE_KERNELS if random.random() < 0.05 else KERNELS
    kernel = random.choice(kernels), random.choice(kernels)
    if random.random() < 0.6:  # most kernels are square
        kernel = kernel[0], kernel[0]
    stride = (_one_or(random, (2, 3, 4)),) * 2
    dilation = (_one_or(random, (2, 3)),) * 2
    if random.random() < 0.2:
        stride, dilation = stride[::-1], (dilation[0], _one_or(random, (2, 3)))
        stride = (stride[0], _one_or(random, (2, 3)))
    image = random.choice(IMAGES), random.choice(IMAGES)
    if random.random() < 0.5:
        image = image[0], image[0]
    extents = [step * (taps - 1) + 1 for step, taps in zip(dilation, kernel, strict=True)]
    padding = _padding(random, extents[0]), _padding(random, extents[1])
    layouts: list[Layout] = ["channels_first", "channels_last"]
    input_layout, weight_layout = random.choices(layouts, (3, 1), k=2)
    return ConvProblem(
        (random.choice(BATCHES), channels * groups, *image),
        (filters * groups, channels, *kernel),
        random.random() < 0.5,
        stride,
        padding,
        dilation,
        groups,
        random.choices(("float32", "bfloat16"), (3, 1))[0],
        input_layout,
        weight_layout,
        threads=random.choice((1, 2)),
        accuracy="relaxed",
    )


def _one_or(random: Random, others: tuple[int, ...]) -> int:
    return random.choice(others) if random.random() < 0.4 else 1


def _padding(random: Random, extent: int) -> int:
    """Return a padding: none, half of the kernel, or any up to its extent and beyond."""
    return random.choice((0, extent // 2, extent // 2, random.randint(0, extent + 1)))


class Product(NamedTuple):
    """A matrix product: A [m, k] times B [k, n], where each may lie by columns or with gaps."""

    m: int
    k: int
    n: int
    bias: bool
    a_columns: bool
    b_columns: bool
    gap: int
    threads: int


def product(seed: int, index: int) -> Product:
    """Return a matrix product."""
    random = Random(f"product {seed} {index}")
    m, k, n = (random.choice(SIZES) for _ in range(3))
    return Product(
        *(m, k, n, random.random() < 0.5, random.random() < 0.3, random.random() < 0.7),
        random.choice((0, 0, 1, 5, 16)),
        random.choice((1, 2)),
    )


class Pooling(NamedTuple):
    """A maximum pooling of an image in channels first."""

    shape: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool
    dtype: str
    threads: int


def pooling(seed: int, index: int) -> Pooling:
    """Return a maximum pooling that PyTorch accepts."""
    random = Random(f"pooling {seed} {index}")
    while True:
        kernel = random.choice((1, 2, 3, 5)), random.choice((1, 2, 3, 5))
        dilation = (_one_or(random, (2, 3)), _one_or(random, (2, 3)))
        padding = random.randint(0, kernel[0] // 2), random.randint(0, kernel[1] // 2)
        image = random.choice(IMAGES), random.choice(IMAGES)
        extents = (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)
        if image[0] + 2 * padding[0] >= extents[0] and image[1] + 2 * padding[1] >= extents[1]:
            break
    return Pooling(
        (random.choice(BATCHES), random.choice(CHANNELS), *image),
        kernel,
        (random.randint(1, 3), random.randint(1, 3)),
        padding,
        dilation,
        random.random() < 0.3,
        random.choice(("float32", "float64")),
        random.choice((1, 2)),
    )
