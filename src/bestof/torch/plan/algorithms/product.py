"""The native matrix products, each as an algorithm for linear layers of its type."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.accuracy import allows
from bestof.kernels import MatmulPlan, isa, matmul_algorithms, pack_matrix
from bestof.torch.convolution.alternative import ROUNDED
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, Site, checked_rows
from bestof.torch.plan.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.problem import FusedProblem

BFLOAT16 = "bfloat16"


class Product(Algorithm):
    """A product of rows and packed weights of one type. It sums in float32, and rounds once.

    float32: the kernel that computes linear layers as convolutions takes 1.02 to 1.22 times as long
    for 32 to 1,024 rows of 768 and 3,072 features (one and two threads of a Zen 5, cold weights).

    bfloat16: at 1 row the weights are read at the speed of memory. Two layers of 1,024 and 2,816
    features take 158 and 174 us where PyTorch's take 421 and 365 (one thread of a Zen 5). A
    processor without instructions for bfloat16 races it too: PyTorch has none there either.
    """

    def __init__(self, kernel: str, dtype: str) -> None:
        self.name, self._dtype = kernel, dtype

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether the layer is of the type, and the product may be the fastest."""
        return self.can_run(problem) and (self._dtype == BFLOAT16 or not problem.only_streams)

    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the layer is linear and of the type, and the accuracy allows it."""
        if not problem.linear or problem.convolution.dtype != self._dtype:
            return False
        return self._dtype == BFLOAT16 or allows(problem.accuracy, "float32")

    def bind(self, site: Site) -> Bound:
        """Pack the weights, and bind the kernel to the addresses of a site."""
        layer, residual = site.layer, site.residual
        (rows, outer), inner = site.out.shape, site.problem.terms
        plan = MatmulPlan(
            (rows, inner),
            (inner, outer),
            algorithm=self.name,
            activation=(layer.activation, layer.slope) if layer.activation else None,
            dtype=self._dtype,
        )
        packed = self._weights(site)
        bias = None if layer.weights.bias is None else layer.weights.bias.float()
        out, added = site.out.data_ptr(), 0 if residual is None else residual.data_ptr()
        find, matrix = self._finder(site, (rows, inner)), packed.layout

        def run() -> None:
            x = find()  # kept until the kernel is done
            plan.run(x.data_ptr(), matrix, out, 0 if bias is None else bias.data_ptr(), added)

        return Bound(run, packed)

    def error(self, problem: FusedProblem) -> float:
        """Return the rms error of the sums, and of the result if it is rounded."""
        one = problem.convolution
        shapes = (one.input_shape[3], problem.terms), (problem.terms, one.weight_shape[0])
        promise = matmul_algorithms(*shapes, dtype=self._dtype)[self.name]
        return promise.error_bound + (ROUNDED.rms if self._dtype == BFLOAT16 else 0.0)

    def weight_bytes(self, site: Site) -> int:
        """Return the bytes of the packed weights."""
        return self._weights(site).nbytes

    def _weights(self, site: Site) -> Packed:
        weights: FrozenWeights = site.layer.weights

        def pack() -> Packed:
            matrix = weights.folded().t()
            bits = matrix.view(torch.uint16) if self._dtype == BFLOAT16 else matrix
            return Packed(pack_matrix(bits.numpy(), algorithm=self.name, dtype=self._dtype))

        return weights.kept((self.name, isa()), pack)

    def _finder(self, site: Site, shape: tuple[int, int]) -> Callable[[], Tensor]:
        x, dtype = site.x, getattr(torch, self._dtype)
        if isinstance(x, Tensor):
            return lambda: x
        return lambda: checked_rows(x(), dtype, shape)


def products() -> list[Product]:
    """Return an algorithm for each native product of packed weights that rounds no operand."""
    return [
        Product(name, dtype)
        for dtype in ("float32", BFLOAT16)
        for name, promise in matmul_algorithms((1, 1), (1, 1), dtype=dtype).items()
        if promise.packs and not (dtype == "float32" and promise.algorithm.relaxed)
    ]
