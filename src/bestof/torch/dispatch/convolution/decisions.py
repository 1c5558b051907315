"""What the selectors of convolution layers have chosen at present."""

from __future__ import annotations

from typing import NamedTuple

from bestof.selection import BestOf
from bestof.torch.dispatch.convolution.forward_only import ForwardOnly
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.rows.offer import SHARED_IM2ROW

JOINT = "joint"
"""PyTorch's own kernels, of which the backward one computes both gradients in one call."""
INDEPENDENT = "independent"
"""Each pass by its own selector."""
SHARED = SHARED_IM2ROW
"""im2row, whose forward pass keeps the lowered matrix for the backward pass."""


class Decisions(NamedTuple):
    """The selectors of one device, of layers and of the three passes, asked for their choices.

    `as_is` is the name of PyTorch's own kernel in each pass. `forward_only` has the layers that are
    inferred: the selector of their forward pass decides alone.
    """

    as_is: str
    layer: BestOf
    forward_pass: BestOf
    input_gradient: BestOf
    weight_gradient: BestOf
    forward_only: ForwardOnly

    def forward(self, met: ConvProblem | LayerProblem, problem: ConvProblem) -> tuple[str, str]:
        """Return how a layer is computed, and what computes its forward pass; "" if undecided."""
        name = self.forward_pass.chosen(problem) or ""
        if not isinstance(met, LayerProblem):
            return INDEPENDENT, name
        whole = self.layer.chosen(met) or (INDEPENDENT if met in self.forward_only else "")
        return whole, self.as_is if whole == JOINT else name

    def backward_is_joint(self, layer: LayerProblem, problem: ConvProblem) -> bool:
        """Return whether PyTorch's own kernel computes all gradients that a backward pass needs."""
        whole, names = self._backward(layer, problem)
        return whole == JOINT or (whole == INDEPENDENT and all(one == self.as_is for one in names))

    def is_forward_open(self, met: ConvProblem | LayerProblem, problem: ConvProblem) -> bool:
        """Return whether anything that computes a forward pass is undecided."""
        whole, name = self.forward(met, problem)
        return not whole or (whole != SHARED and not name)

    def is_backward_open(self, layer: LayerProblem, problem: ConvProblem) -> bool:
        """Return whether anything that computes a backward pass is undecided."""
        whole, names = self._backward(layer, problem)
        return whole is None or (whole == INDEPENDENT and None in names)

    def _backward(
        self, layer: LayerProblem, problem: ConvProblem
    ) -> tuple[str | None, list[str | None]]:
        """Return how a layer is computed, and what computes each gradient that is needed."""
        passes = ((layer.input, self.input_gradient), (layer.weight, self.weight_gradient))
        names = [selector.chosen(problem) for wanted, selector in passes if wanted]
        return self.layer.chosen(layer), names

    @property
    def joint(self) -> set[ConvProblem]:
        """The convolutions, without bias, that PyTorch's own kernels compute as a whole."""
        return {
            problem.convolution._replace(bias=False)
            for problem, chosen in self.layer.best_name.items()
            if isinstance(problem, LayerProblem) and chosen == JOINT
        }
