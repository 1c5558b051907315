"""The native matrix products, each as an algorithm for layers that are one product."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.accuracy import allows
from bestof.kernels import (
    MatmulAlgorithm,
    MatmulPlan,
    isa,
    matmul_algorithms,
    pack_matrix,
)
from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, PlacedLayer, checked_input
from bestof.torch.plan.algorithms.native_runner import native_runner
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.layers.problem import FusedProblem


class Product(Algorithm):
    """A product of rows and packed weights, summed in float32 and rounded once.

    The product computes linear layers, and convolutions of single pixels, whose rows are the
    pixels.

    float32: the kernel that computes linear layers as convolutions takes 1.02 to 1.22 times as long
    for 32 to 1,024 rows of 768 and 3,072 features (one and two threads of a Zen 5, cold weights).

    bfloat16: at 1 row the weights are read at the speed of memory. Two layers of 1,024 and 2,816
    features take 158 and 174 us where PyTorch's take 421 and 365 (one thread of a Zen 5). A
    processor without instructions for bfloat16 races this product too: PyTorch has no such
    instructions there either.
    """

    def __init__(self, kernel: MatmulAlgorithm) -> None:
        self.name, self._kernel = kernel.name, kernel
        self.rounds = "both" if kernel.relaxed else "nothing"

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether the product may be the fastest."""
        if not self.can_run(problem):
            return False
        if _rows_shape(problem)[0] < self._kernel.least_rows:
            return False
        # The instruction set in use may have changed since the table was made.
        emulated = matmul_algorithms((1, 1), (1, 1))[self.name].algorithm.emulated
        return is_rounded(_dtype(problem)) or not (emulated or problem.only_streams)

    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the layer is a product of the right type, and the accuracy allows it."""
        if not problem.is_product or _dtype(problem) not in self._kernel.dtypes:
            return False
        rounds = self._kernel.relaxed and not is_rounded(_dtype(problem))
        return allows(problem.accuracy, "relaxed" if rounds else "float32")

    def bind(self, placed: PlacedLayer) -> Bound:
        """Pack the weights, and bind the kernel to the addresses of a placed layer."""
        layer, dtype = placed.layer, _dtype(placed.problem)
        (rows, inner), outer = _rows_shape(placed.problem), layer.weights.weight.shape[0]
        plan = MatmulPlan(
            (rows, inner),
            (inner, outer),
            out_strides=(placed.problem.pitch, 1) if self.pitches(placed.problem) else None,
            algorithm=self.name,
            activation=(layer.activation, layer.slope) if layer.activation else None,
            dtype=dtype,
        )
        packed = self._weights(placed)
        bias = layer.weights.float_bias
        operands = self.writes_to(placed), placed.residual, placed.gate
        out, added, gate = map(_address, operands)
        matrix, offsets = packed.layout, _address(bias)
        if isinstance(placed.x, Tensor):
            return Bound(plan.bind(placed.x.data_ptr(), matrix, out, offsets, added, gate), packed)
        find, given = placed.x, (getattr(torch, dtype), _rows_shape(placed.problem))

        @native_runner
        def run() -> None:
            x = checked_input(find(), *given)  # kept until the kernel is done
            plan.run(x.data_ptr(), matrix, out, offsets, added, gate)

        return Bound(run, packed)

    def pitches(self, problem: FusedProblem) -> bool:
        return problem.pitch > 0

    def gates(self, problem: FusedProblem) -> bool:
        return problem.gated

    def error(self, problem: FusedProblem) -> float:
        """Return the rms error of the sums, and that of the result if the result is rounded."""
        dtype, (rows, inner) = _dtype(problem), _rows_shape(problem)
        shapes = (rows, inner), (inner, problem.convolution.weight_shape[0])
        sums = matmul_algorithms(*shapes, dtype=dtype)[self.name].error_bound
        return ErrorBound(sums, sums).rounded(dtype).rms

    def weight_bytes(self, placed: PlacedLayer) -> int:
        """Return the bytes of the packed weights."""
        return self._weights(placed).nbytes

    def _weights(self, placed: PlacedLayer) -> Packed:
        weights: FrozenWeights = placed.layer.weights
        dtype = _dtype(placed.problem)

        def pack() -> Packed:
            matrix = weights.folded().flatten(1).t()
            return Packed(pack_matrix(matrix, algorithm=self.name, dtype=dtype))

        return weights.kept((self.name, isa()), pack)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _dtype(problem: FusedProblem) -> str:
    return problem.convolution.dtype


def _rows_shape(problem: FusedProblem) -> tuple[int, int]:
    """Return (rows, terms) of the product; the pixels of all images are the rows."""
    images, _, height, width = problem.convolution.input_shape
    return images * height * width, problem.terms


def products() -> list[Product]:
    """Return an algorithm for each native product of packed weights."""
    promises = matmul_algorithms((1, 1), (1, 1)).values()
    return [Product(promise.algorithm) for promise in promises if promise.packs]
