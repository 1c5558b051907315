"""Computes a convolution by every native algorithm that takes it, and compares with float64."""

import sys

import numpy as np

from bestof import kernels

random = np.random.default_rng(0)
images = random.standard_normal((2, 12, 12, 8))  # channels last
filters = random.standard_normal((16, 3, 3, 8))
windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
expected = np.einsum("nyxcij,kijc->nyxk", windows, filters)
size = np.sqrt(np.square(expected).mean())
promises = kernels.conv2d_algorithms(images.shape, filters.shape)
assert promises
for name, promise in promises.items():
    result = kernels.conv2d(images.astype(np.float32), filters.astype(np.float32), algorithm=name)
    error = np.abs(result - expected).max() / size
    assert error <= promise.maximum_bound, (name, error)
assert "torch" not in sys.modules
print(f"{kernels.isa()}: {', '.join(promises)}")
