"""Weight gradients have the same bits again, whatever other threads do.

Their sums go over all pixels, so threads add up parts. Which part is whose must not depend on time.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from convolution import Case

from bestof import kernels

# 2,048 tiles of Winograd's F(2), so that a thread takes several blocks of them.
CASE = Case((8, 32, 32, 16), (16, 3, 3, 16), padding=((1, 1), (1, 1)))
DEPTHWISE = Case((8, 32, 32, 16), (16, 3, 3, 1), padding=((1, 1), (1, 1)), groups=16)
RUNS = 12


@pytest.mark.parametrize("case", [CASE, DEPTHWISE], ids=["dense", "depthwise"])
def test_weight_gradients_have_the_same_bits_beside_a_busy_thread(case: Case) -> None:
    random = np.random.default_rng(3)
    x, g = (random.standard_normal(shape, np.float32) for shape in (case.x_shape, case.y_shape))
    over = threading.Event()
    busy = threading.Thread(target=_spin, args=(over,))
    busy.start()
    try:
        for name in kernels.conv2d_algorithms(
            case.x_shape, case.w_shape, direction="backward_weight", **case.geometry
        ):
            results = [
                kernels.conv2d_backward_weight(
                    g, x, case.w_shape, algorithm=name, threads=2, **case.geometry
                )
                for _ in range(RUNS)
            ]
            assert len({one.tobytes() for one in results}) == 1, name
    finally:
        over.set()
        busy.join()


def _spin(over: threading.Event) -> None:
    numbers = np.ones((256, 256), np.float32)
    while not over.is_set():
        numbers @ numbers
