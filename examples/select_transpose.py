"""Choose the fastest transposition for each shape, on the program's own calls.

This is the first listing of the BestOf paper. Tensors go from channels last (NHWC) to channels
first (NCHW); the best order of the loops depends on their shape. It needs NumPy only.
"""

import numpy as np

from bestof import BestOf


def numpy_copy(x):
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def image_by_image(x):
    y = np.empty((x.shape[0], x.shape[3], x.shape[1], x.shape[2]), x.dtype)
    for image, transposed in zip(x, y, strict=True):
        np.copyto(transposed.reshape(x.shape[3], -1), image.reshape(-1, x.shape[3]).T)
    return y


def channel_by_channel(x):
    y = np.empty((x.shape[0], x.shape[3], x.shape[1], x.shape[2]), x.dtype)
    for channel in range(x.shape[3]):
        y[:, channel] = x[..., channel]
    return y


transpose = BestOf(
    name="transpose NHWC to NCHW",
    alternatives=[
        ("numpy", numpy_copy),
        ("image by image", image_by_image),
        ("channel by channel", channel_by_channel),
    ],
    get_problem_size=lambda x: x.shape,
)


def main():
    rng = np.random.default_rng(0)
    for shape in ((64, 32, 32, 3), (64, 8, 8, 256), (1, 56, 56, 64), (8, 1, 1, 512)):
        x = rng.standard_normal(shape, dtype=np.float32)
        for _ in range(200):
            y = transpose(x)
        assert (y == x.transpose(0, 3, 1, 2)).all()
    transpose.print_as_table()


if __name__ == "__main__":
    main()
