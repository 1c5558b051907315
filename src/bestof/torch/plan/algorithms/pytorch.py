"""PyTorch's own operators: the algorithm of every layer that nothing else runs."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.ops.bound import summation_bound
from bestof.torch.ops.convolution import onednn
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, PlacedLayer, Runner
from bestof.torch.plan.algorithms.onednn import has_onednn
from bestof.torch.plan.layers.problem import FusedProblem


class PyTorch(Algorithm):
    """`conv2d` or `linear`, by the library that PyTorch calls."""

    name = "pytorch"
    trusted = True

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether oneDNN does not take part, which PyTorch would call as well."""
        return not has_onednn(problem)

    def can_run(self, problem: FusedProblem) -> bool:  # noqa: ARG002  # any
        """Return True."""
        return True

    def bind(self, placed: PlacedLayer) -> Bound:
        """Bind the operator to memory.

        If oneDNN is not known to compute the layer in channels last, the operator gets copies in
        channels first, as in the model.
        """
        if placed.layer.linear:
            packed = placed.layer.weights.folded_kept()
            return Bound(_linear(placed, packed.layout), packed)
        layer, x, out, residual = placed.layer, placed.images, placed.aside, placed.residual
        weight = layer.weights.folded()
        if onednn.serves(placed.problem.convolution, "forward"):
            return Bound(lambda: out.copy_(layer.apply(x, residual, weight)))
        weight = weight.clone(memory_format=torch.contiguous_format)

        def run_in_channels_first() -> None:
            given = x.clone(memory_format=torch.contiguous_format)
            out.copy_(layer.apply(given, residual, weight))

        return Bound(run_in_channels_first)

    def error(self, problem: FusedProblem) -> float:
        """Return the rms error of a plain sum, which is rounded to the type of the layer."""
        sums = summation_bound(problem.terms, "float32")
        return sums.rounded(problem.convolution.dtype).rms

    def weight_bytes(self, placed: PlacedLayer) -> int:
        """Return the bytes of the model's weights."""
        return placed.layer.weights.weight.nbytes


def _linear(placed: PlacedLayer, weight: Tensor) -> Runner:
    layer, x, out = placed.layer, placed.x, placed.out
    transposed, bias = weight.t(), layer.weights.bias
    find = x if not isinstance(x, Tensor) else lambda: x
    residual = placed.residual
    if residual is not None:  # which may lie where the results do
        return lambda: out.copy_(layer.apply(find(), residual, weight))
    if bias is None:
        return lambda: layer.activate(torch.mm(find(), transposed, out=out))
    return lambda: layer.activate(torch.addmm(bias, find(), transposed, out=out))
