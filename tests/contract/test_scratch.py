"""How much memory the convolutions take beside their arguments, on layers of real networks.

Packed weights are left out: they take `pack_weights(...).nbytes`, rounded to a cache line, once for
each version of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil

import numpy as np
import pytest

from bestof import kernels

# Extent, channels in and out, kernel y and x, stride: layers of VGG16, ResNet50, GoogLeNet,
# Inception v3 and MobileNet v2.
LAYERS = (
    (224, 64, 64, 3, 3, 1),
    (112, 128, 128, 3, 3, 1),
    (56, 256, 256, 3, 3, 1),
    (28, 512, 512, 3, 3, 1),
    (14, 512, 512, 3, 3, 1),
    (56, 64, 64, 3, 3, 1),
    (28, 128, 128, 3, 3, 1),
    (14, 256, 256, 3, 3, 1),
    (56, 64, 192, 3, 3, 1),
    (28, 96, 128, 3, 3, 1),
    (28, 16, 32, 5, 5, 1),
    (14, 32, 128, 5, 5, 1),
    (35, 48, 64, 5, 5, 1),
    (17, 192, 192, 1, 3, 1),
    (17, 192, 192, 1, 5, 1),
    (17, 192, 192, 1, 7, 1),
    (17, 160, 192, 7, 1, 1),
    (56, 128, 128, 3, 3, 2),
    (64, 64, 128, 4, 4, 2),
    (224, 3, 64, 7, 7, 2),
    (56, 256, 64, 1, 1, 1),
    (28, 512, 1024, 1, 1, 2),
)
# Results of a tile. A row that is missing here is held to the promise where even tiles of MOST x
# MOST results are enough for blocks.
MOST = 6
TILES = {
    "winograd2": (2, 2),
    "winograd4": (4, 4),
    "winograd6": (6, 6),
    "winograd4_1x3": (1, 4),
    "winograd4_1x5": (1, 4),
    "winograd4_1x7": (1, 4),
    "winograd4_7x1": (4, 1),
    "winograd2_5x5": (2, 2),
    "winograd4_5x5": (4, 4),
    "winograd3_s2": (3, 3),
    "winograd3_4x4_s2": (3, 3),
    "winograd3_7x7_s2": (3, 1),
}
# Blocks have at most this many tiles. With fewer tiles a thread, the transforms of the whole layer
# may be kept.
BLOCK = 112


# (extent, channels, groups) of 3x3 convolutions: layers of RegNet and ResNeXt.
GROUPED = ((28, 64, 4), (14, 160, 10), (56, 128, 32))


# `im2row` is left out: its copies take up to half of L2 a thread, however small the layer.
COPYING = {"im2row"}


@dataclass(frozen=True, slots=True)
class Trial:
    name: str
    x_shape: tuple[int, int, int, int]
    w_shape: tuple[int, int, int, int]
    stride: int
    threads: int
    groups: int = 1

    @property
    def options(self) -> dict[str, object]:
        _, height, width, _ = self.w_shape
        padding = (height - 1) // 2, (width - 1) // 2
        return {"stride": self.stride, "padding": padding, "groups": self.groups}

    @property
    def out_extent(self) -> int:
        return (self.x_shape[1] - 1) // self.stride + 1

    @property
    def fused(self) -> bool:
        """Whether it walks the layer in blocks, from the input to the output of each."""
        row = kernels.algorithms()[self.name]
        if not row.transforms or row.shapes == "grouped kernel":
            return True
        _, height, width, _ = self.w_shape
        largest = (MOST if height > 1 else 1, MOST if width > 1 else 1)
        y, x = TILES.get(self.name, largest)
        tiles = self.x_shape[0] * ceil(self.out_extent / y) * ceil(self.out_extent / x)
        return tiles >= BLOCK * self.threads

    def __str__(self) -> str:
        n, extent, _, channels = self.x_shape
        layer = f"{n}x{extent}-{channels}-{self.w_shape[0]}-s{self.stride}-g{self.groups}"
        return f"{self.name}-{layer}-{self.threads}"


def _trials() -> list[Trial]:
    trials = []
    for (extent, channels, outputs, height, width, stride), batch, threads in product(
        LAYERS, (1, 8), (1, 2)
    ):
        shapes = (batch, extent, extent, channels), (outputs, height, width, channels)
        any_algorithm = Trial("", *shapes, stride, threads)
        rows = kernels.conv2d_algorithms(*shapes, **any_algorithm.options)
        trials += [replace(any_algorithm, name=name) for name in rows if name not in COPYING]
    for (extent, channels, groups), batch, threads in product(GROUPED, (1, 8), (1, 2)):
        shapes = (batch, extent, extent, channels), (channels, 3, 3, channels // groups)
        trials += [
            Trial(name, *shapes, 1, threads, groups)
            for name, row in kernels.algorithms().items()
            if row.shapes == "grouped kernel"
        ]
    return [trial for trial in trials if trial.fused]


@cache
def _packed_bytes(name: str, w_shape: tuple[int, int, int, int], groups: int) -> int:
    packed = kernels.pack_weights(np.zeros(w_shape, np.float32), name, groups=groups)
    return (packed.nbytes + 63) // 64 * 64


@pytest.mark.parametrize("trial", _trials(), ids=str)
def test_scratch_is_below_twice_the_input_and_output(trial: Trial) -> None:
    batch, extent, _, channels = trial.x_shape
    layer = 4 * batch * (extent**2 * channels + trial.out_extent**2 * trial.w_shape[0])
    rows = kernels.conv2d_algorithms(
        trial.x_shape, trial.w_shape, threads=trial.threads, **trial.options
    )
    packed = _packed_bytes(trial.name, trial.w_shape, trial.groups)
    scratch = rows[trial.name].scratch_bytes - packed
    assert 0 <= scratch < 2 * layer, f"{scratch / layer:.2f} times the layer"


def test_every_fused_row_is_tried() -> None:
    tried = {trial.name for trial in _trials()}
    transforms = {row.name for row in kernels.algorithms().values() if row.transforms}
    assert set(TILES) <= transforms
    assert tried >= transforms | {"convgemm"}
