"""The current decisions of all selectors of a convolution layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bestof.selection.state.journal import Entry
from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.decisions import CurrentDecisions

JOINT = "joint"
"""PyTorch's own kernels, of which the backward one computes both gradients in one call."""
INDEPENDENT = "independent"
"""Each pass by its own selector."""
SHARED = "shared im2row"
"""im2row, whose forward pass keeps the lowered matrix for the backward pass."""


class Names(NamedTuple):
    """The names of the selectors of one device: of the layer and of its three passes."""

    layer: str
    forward: str
    input_gradient: str
    weight_gradient: str


class Decisions:
    """The choices of all selectors of a layer, by selector and problem.

    The selectors report to `listener`. `on_change` is called after every change, as
    `CurrentDecisions` describes it.
    """

    def __init__(self, names: Names, as_is: str, on_change: Callable[[], object]) -> None:
        self._names = names
        self._as_is = as_is
        self._current: CurrentDecisions[ConvProblem | LayerProblem] = CurrentDecisions(on_change)

    def listener(self, name: str) -> Callable[[Entry], None]:
        """Return the function that takes the journal entries of the selector `name`."""
        return self._current.listener(name)

    def forward(self, met: ConvProblem | LayerProblem, problem: ConvProblem) -> tuple[str, str]:
        """Return how a layer is computed, and what computes its forward pass; "" if undecided."""
        name = self._current.get(self._names.forward, problem) or ""
        if not isinstance(met, LayerProblem):
            return INDEPENDENT, name
        whole = self._current.get(self._names.layer, met) or ""
        return whole, self._as_is if whole == JOINT else name

    def backward_is_joint(self, layer: LayerProblem, problem: ConvProblem) -> bool:
        """Return whether PyTorch's own kernel computes all gradients that a backward pass needs."""
        whole = self._current.get(self._names.layer, layer)
        if whole != INDEPENDENT:
            return whole == JOINT
        passes = (
            (layer.input, self._names.input_gradient),
            (layer.weight, self._names.weight_gradient),
        )
        return all(
            self._current.get(name, problem) == self._as_is for wanted, name in passes if wanted
        )

    @property
    def joint(self) -> set[ConvProblem]:
        """The convolutions, without bias, that PyTorch's own kernels compute as a whole."""
        return {
            problem.convolution._replace(bias=False)
            for _, problem, chosen in self._current
            if isinstance(problem, LayerProblem) and chosen == JOINT
        }
