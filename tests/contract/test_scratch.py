"""How much memory the convolutions take beside their arguments, on layers of real networks.

Packed weights are left out: their bytes are `pack_weights(...).nbytes`, rounded to a cache line, and they are paid once
a version of the weights, however many images pass.
"""

from __future__ import annotations

from functools import cache
from math import ceil

import numpy as np
import pytest

from bestof import kernels

# Extent, channels in and out, kernel y and x, stride, of VGG16, ResNet50, GoogLeNet, Inception v3 and MobileNet v2.
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
    (17, 192, 192, 1, 7, 1),
    (17, 160, 192, 7, 1, 1),
    (56, 128, 128, 3, 3, 2),
    (56, 256, 64, 1, 1, 1),
    (28, 512, 1024, 1, 1, 2),
)
TILES = {
    "winograd2": (2, 2),
    "winograd4": (4, 4),
    "winograd6": (6, 6),
    "winograd4_1x7": (1, 4),
    "winograd4_7x1": (4, 1),
    "winograd2_5x5": (2, 2),
    "winograd4_5x5": (4, 4),
}
# The fused mode walks blocks of at most this many tiles; with fewer a thread, the transforms may be kept whole.
BLOCK = 112


@cache
def _packed_bytes(name: str, w_shape: tuple[int, int, int, int]) -> int:
    packed = kernels.pack_weights(np.zeros(w_shape, np.float32), name)
    return (packed.nbytes + 63) // 64 * 64


def _trials():  # type: ignore[no-untyped-def]  # pytest's parameters
    for extent, channels, outputs, height, width, stride in LAYERS:
        for batch in (1, 8):
            x_shape, w_shape = (batch, extent, extent, channels), (outputs, height, width, channels)
            padding = (height // 2, width // 2)
            rows = kernels.conv2d_algorithms(x_shape, w_shape, stride=stride, padding=padding)
            for name in sorted(set(rows) - {"im2row"}):  # whose copies take up to half of L2 a thread, however small the layer
                yield pytest.param(
                    name, x_shape, w_shape, stride, padding, id=f"{name}-{batch}x{extent}-{channels}-{outputs}-s{stride}"
                )


@pytest.mark.parametrize(("name", "x_shape", "w_shape", "stride", "padding"), list(_trials()))
@pytest.mark.parametrize("threads", [1, 2])
def test_scratch_is_below_twice_the_input_and_output(
    name: str,
    x_shape: tuple[int, int, int, int],
    w_shape: tuple[int, int, int, int],
    stride: int,
    padding: tuple[int, int],
    threads: int,
) -> None:
    batch, extent = x_shape[:2]
    out_extent = (extent - 1) // stride + 1
    layer = 4 * batch * (extent**2 * x_shape[3] + out_extent**2 * w_shape[0])
    row = kernels.conv2d_algorithms(x_shape, w_shape, stride=stride, padding=padding, threads=threads)[name]
    scratch = row.scratch_bytes - _packed_bytes(name, w_shape)
    assert scratch >= 0
    tile = TILES.get(name)
    if tile is not None:
        tiles = batch * ceil(out_extent / tile[0]) * ceil(out_extent / tile[1])
        if tiles < BLOCK * threads:
            return
    assert scratch < 2 * layer, f"{scratch / layer:.2f} times the layer"
