"""oneDNN by PyTorch's operator that fuses activations, with weights reordered in advance."""

from __future__ import annotations

import torch

from bestof.torch.ops.bound import summation_bound
from bestof.torch.ops.convolution import onednn
from bestof.torch.ops.onednn import sums_in_float32
from bestof.torch.plan.algorithms.algorithm import Algorithm, Bound, PlacedLayer
from bestof.torch.plan.layers.activations import activation_of
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.layers.problem import FusedProblem


def has_onednn(problem: FusedProblem) -> bool:
    """Return whether oneDNN computes a problem, and is known to do so rightly."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if problem.linear or not available:
        return False
    if not onednn.serves(problem.convolution, "forward"):
        return False
    return sums_in_float32(problem.convolution.dtype)


class OneDnn(Algorithm):
    """A convolution by oneDNN."""

    name = "onednn"
    trusted = True

    def supports(self, problem: FusedProblem) -> bool:
        """Return whether PyTorch has oneDNN, and the layer is a convolution."""
        return has_onednn(problem)

    def can_run(self, problem: FusedProblem) -> bool:
        """Return whether the layer is a convolution of a type that oneDNN has."""
        return has_onednn(problem)

    def bind(self, placed: PlacedLayer) -> Bound:
        """Reorder the weights, and bind the operator to memory."""
        layer, x, out, residual = placed.layer, placed.images, placed.aside, placed.residual
        packed = _reordered(placed)
        weight, bias, geometry = packed.layout, layer.weights.bias, _geometry(placed)
        compute = torch.ops.mkldnn._convolution_pointwise
        name, scalars, variant = activation_of(layer.activation).onednn(layer.slope)

        def run() -> None:
            out.copy_(compute(x, weight, bias, *geometry, name, scalars, variant))

        def run_with_residual() -> None:
            y = compute(x, weight, bias, *geometry, "none", [], "")
            torch.add(y, residual, out=out)  # type: ignore[arg-type]  # it is not None here
            layer.activate(out)

        return Bound(run if residual is None else run_with_residual, packed)

    def error(self, problem: FusedProblem) -> float:
        """Return the rms error of a plain sum, which is rounded to the type of the layer."""
        sums = summation_bound(problem.terms, "float32")
        return sums.rounded(problem.convolution.dtype).rms

    def weight_bytes(self, placed: PlacedLayer) -> int:
        """Return the bytes of the reordered weights."""
        return _reordered(placed).nbytes


def _geometry(placed: PlacedLayer) -> tuple[object, ...]:
    layer = placed.layer
    return layer.padding, layer.stride, layer.dilation, layer.groups


def _reordered(placed: PlacedLayer) -> Packed:
    weights: FrozenWeights = placed.layer.weights
    geometry = _geometry(placed)
    shape = list(placed.images.shape)

    def reorder() -> Packed:
        weight = weights.folded().contiguous()
        return Packed(torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, shape))

    return weights.kept(("onednn", str(geometry), str(shape)), reorder)
