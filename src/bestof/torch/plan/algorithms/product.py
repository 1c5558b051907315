"""The native matrix products of bfloat16, each as an algorithm for linear layers of that type."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bestof.kernels import MatmulPlan, isa, matmul_algorithms, pack_matrix
from bestof.torch.convolution.alternative import ROUNDED
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, Site, checked_rows
from bestof.torch.plan.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.problem import FusedProblem

BFLOAT16 = "bfloat16"


class Product(Algorithm):
    """A product of rows and weights of bfloat16. It sums in float32, and rounds the result once.

    The weights are packed. At 1 row they are read at the speed of memory: two layers of 1,024 and
    2,816 features take 158 and 174 us where PyTorch's take 421 and 365 (one thread of a Zen 5).
    A processor without instructions for bfloat16 races it too: PyTorch has none there either.
    """

    def __init__(self, kernel: str) -> None:
        self.name = kernel

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether the layer is linear, and of bfloat16."""
        return self.can_run(problem)

    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the layer is linear, and of bfloat16."""
        return problem.linear and problem.convolution.dtype == BFLOAT16

    def bind(self, site: Site) -> Bound:
        """Pack the weights, and bind the kernel to the addresses of a site."""
        layer, residual = site.layer, site.residual
        (rows, outer), inner = site.out.shape, site.problem.terms
        plan = MatmulPlan(
            (rows, inner),
            (inner, outer),
            algorithm=self.name,
            activation=(layer.activation, layer.slope) if layer.activation else None,
            dtype=BFLOAT16,
        )
        packed = self._weights(site)
        bias = None if layer.weights.bias is None else layer.weights.bias.float()
        out, added = site.out.data_ptr(), 0 if residual is None else residual.data_ptr()
        find, matrix = _finder(site, (rows, inner)), packed.layout

        def run() -> None:
            x = find()  # kept until the kernel is done
            plan.run(x.data_ptr(), matrix, out, 0 if bias is None else bias.data_ptr(), added)

        return Bound(run, packed)

    def error(self, problem: FusedProblem) -> float:
        """Return the rms error of the sums, and of the result that is rounded once."""
        one = problem.convolution
        shapes = (one.input_shape[3], problem.terms), (problem.terms, one.weight_shape[0])
        promise = matmul_algorithms(*shapes, dtype=BFLOAT16)[self.name]
        return promise.error_bound + ROUNDED.rms

    def weight_bytes(self, site: Site) -> int:
        """Return the bytes of the packed weights."""
        return self._weights(site).nbytes

    def _weights(self, site: Site) -> Packed:
        weights: FrozenWeights = site.layer.weights

        def pack() -> Packed:
            bits = weights.folded().t().view(torch.uint16)
            return Packed(pack_matrix(bits.numpy(), algorithm=self.name, dtype=BFLOAT16))

        return weights.kept((self.name, isa()), pack)


def products() -> list[Product]:
    """Return an algorithm for each native product of bfloat16."""
    return [Product(name) for name in matmul_algorithms((1, 1), (1, 1), dtype=BFLOAT16)]


def _finder(site: Site, shape: tuple[int, int]) -> Callable[[], Tensor]:
    x = site.x
    if isinstance(x, Tensor):
        return lambda: x
    return lambda: checked_rows(x(), torch.bfloat16, shape)
