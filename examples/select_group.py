"""Choose two functions together.

This is the second listing of the BestOf paper. The forward pass of a layer may keep what its
backward pass can use. Which way is faster depends on both passes, so bestof chooses them as one. A
call names the stage first, 0 or 1. It needs NumPy only.
"""

import numpy as np

from bestof import BestOf


class Convolution1d:
    """y[n, k, p] = sum over c, r of x[n, c, p + r] w[k, c, r], and the gradient of w."""

    def __init__(self, weights):
        self.w = weights
        self.kept = None
        self.choose = BestOf(
            name="convolution in one dimension",
            alternatives=[
                ("keep the windows", [self.forward_keeping, self.backward_kept]),
                ("build them twice", [self.forward, self.backward]),
                ("tap by tap", [self.forward_by_taps, self.backward_by_taps]),
            ],
            get_problem_size=lambda x, *_: x.shape + self.w.shape,
        )

    def windows(self, x):
        view = np.lib.stride_tricks.sliding_window_view(x, self.w.shape[2], axis=2)  # n, c, p, r
        return np.ascontiguousarray(view.transpose(0, 2, 1, 3)).reshape(
            x.shape[0], view.shape[2], -1
        )  # n, p, c r

    def multiply(self, windows):
        return (windows @ self.w.reshape(self.w.shape[0], -1).T).transpose(0, 2, 1)

    def gradient(self, windows, dy):
        return np.einsum("nkp,npx->kx", dy, windows, optimize=True).reshape(self.w.shape)

    def forward_keeping(self, x):
        self.kept = self.windows(x)
        return self.multiply(self.kept)

    def backward_kept(self, _x, dy):
        return self.gradient(self.kept, dy)

    def forward(self, x):
        return self.multiply(self.windows(x))

    def backward(self, x, dy):
        return self.gradient(self.windows(x), dy)

    def taps(self, x):
        length = x.shape[2] - self.w.shape[2] + 1
        return [x[:, :, tap : tap + length] for tap in range(self.w.shape[2])]

    def forward_by_taps(self, x):
        return sum(self.w[:, :, tap] @ shifted for tap, shifted in enumerate(self.taps(x)))

    def backward_by_taps(self, x, dy):
        return np.stack(
            [np.einsum("nkp,ncp->kc", dy, shifted, optimize=True) for shifted in self.taps(x)],
            axis=2,
        )


def main():
    rng = np.random.default_rng(0)
    for batch, channels, length, filters, taps in ((32, 1, 256, 16, 9), (32, 64, 64, 64, 3)):
        layer = Convolution1d(rng.standard_normal((filters, channels, taps), dtype=np.float32))
        x = rng.standard_normal((batch, channels, length), dtype=np.float32)
        for _ in range(200):
            y = layer.choose(0, x)
            layer.choose(1, x, y)
        layer.choose.print_as_table()


if __name__ == "__main__":
    main()
