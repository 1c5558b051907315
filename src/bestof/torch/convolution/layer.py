"""What is chosen for a convolution: a group per layer, and below it a selection for each of the three passes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.selection import Alternative, BestOf
from bestof.torch.convolution import im2row, shared_im2row
from bestof.torch.convolution.catalogue import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Catalogue
from bestof.torch.convolution.kept_matrices import KeptMatrices
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

_VERSION = (f"torch=={torch.__version__}",)
# The lowered matrix is R S times the input, and is kept for every layer of a step.
_KEPT_BYTES = 256 * 2**20


class LayerProblem(NamedTuple):
    """A convolution that will be differentiated, and by what: the gradients that are wanted."""

    convolution: ConvProblem
    input: bool
    weight: bool
    bias: bool

    def canonical(self) -> str:
        """Canonical text, for the store."""
        wanted = [name for name, is_wanted in (("x", self.input), ("w", self.weight), ("b", self.bias)) if is_wanted]
        return f"{self.convolution.canonical()} gradients={'+'.join(wanted)}"


class ConvolutionLayer:
    """The selectors of 2-D convolution for the whole process: layers with equal problems share what is found out."""

    def __init__(self, originals: Originals) -> None:
        self._originals = originals
        self._kept = KeptMatrices()
        self.calls: Counter[tuple[str, ConvProblem]] = Counter()
        self.forward_pass = self._selector(FORWARD)
        self.input_gradient = self._selector(INPUT_GRADIENT)
        self.weight_gradient = self._selector(WEIGHT_GRADIENT)
        self.layer = BestOf(
            "convolution layer",
            [
                Alternative("independent", [self._independent_forward, self._independent_backward], _VERSION),
                Alternative(
                    "shared im2row", [self._shared_forward, self._shared_backward], _VERSION, supports=_shares_im2row
                ),
            ],
            lambda layer, *_: layer,
        )

    @property
    def passes(self) -> tuple[BestOf, BestOf, BestOf]:
        """The selectors of the three passes."""
        return self.forward_pass, self.input_gradient, self.weight_gradient

    def infer(self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A forward pass that no backward pass will follow."""
        self.calls["forward", problem] += 1
        return self.forward_pass(problem, input, weight, bias)  # type: ignore[no-any-return]

    def forward(self, problem: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The forward pass of a training step."""
        return self.layer(0, problem, input, weight, bias)  # type: ignore[no-any-return]

    def backward(
        self, problem: LayerProblem, grad_output: Tensor, input: Tensor, weight: Tensor, grad_layout: str
    ) -> Gradients:
        """The wanted gradients of input, weight and bias; None for the others."""
        return self.layer(1, problem, grad_output, input, weight, grad_layout)  # type: ignore[no-any-return]

    def forget_kept(self) -> None:
        """Free what forward passes keep for their backward passes."""
        self._kept.clear()

    def _selector(self, catalogue: Catalogue) -> BestOf:
        originals = self._originals

        def bind(function: object) -> object:
            return lambda problem, *tensors: function(originals, *tensors, problem)  # type: ignore[operator]

        return BestOf(
            f"convolution {catalogue.direction}",
            [
                Alternative(row.name, bind(row.function), _VERSION, supports=row.supports)  # type: ignore[arg-type]
                for row in catalogue.alternatives
            ],
            lambda problem, *_: problem,
        )

    def _independent_forward(self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.infer(layer.convolution, input, weight, bias)

    def _independent_backward(
        self, layer: LayerProblem, grad_output: Tensor, input: Tensor, weight: Tensor, grad_layout: str
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        grad_weight = None
        if layer.weight:
            self.calls["weight gradient", problem] += 1
            grad_weight = self.weight_gradient(problem, grad_output, input)
        return self._grad_input(layer, problem, grad_output, weight), grad_weight, _grad_bias(layer, grad_output)

    def _shared_forward(self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output, lowered = shared_im2row.forward(input, weight, bias, layer.convolution)
        self._kept.keep(input, lowered)
        return output

    def _shared_backward(
        self, layer: LayerProblem, grad_output: Tensor, input: Tensor, weight: Tensor, grad_layout: str
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        lowered = self._kept.take(input)
        if lowered is not None:
            grad_weight = shared_im2row.weight_gradient(lowered, grad_output, problem)
        else:  # a second backward pass over the same graph
            grad_weight = im2row.weight_gradient(self._originals, grad_output, input, problem)
        return self._grad_input(layer, problem, grad_output, weight), grad_weight, _grad_bias(layer, grad_output)

    def _grad_input(
        self, layer: LayerProblem, problem: ConvProblem, grad_output: Tensor, weight: Tensor
    ) -> Tensor | None:
        if not layer.input:
            return None
        self.calls["input gradient", problem] += 1
        return self.input_gradient(problem, grad_output, weight)  # type: ignore[no-any-return]


def _grad_bias(layer: LayerProblem, grad_output: Tensor) -> Tensor | None:
    return grad_output.sum((0, 2, 3)) if layer.bias else None


def _shares_im2row(layer: object) -> bool:
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    n, _, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    itemsize = 8 if problem.dtype == "float64" else 4
    size = n * p * q * r * s * c * problem.groups * itemsize
    return layer.weight and size <= _KEPT_BYTES and shared_im2row.supports(problem)
