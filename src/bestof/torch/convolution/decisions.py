"""The current decisions of all selectors of a convolution layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from bestof.selection.journal import DecisionEntry, Entry, TrialEntry
from bestof.torch.convolution.problem import ConvProblem, LayerProblem

JOINT = "joint"
"""PyTorch's own kernels, of which the backward one computes both gradients in one call."""
INDEPENDENT = "independent"
"""Each pass by its own selector."""
SHARED = "shared im2row"
"""im2row, whose forward pass keeps the lowered matrix for the backward pass."""

_LIMIT = 65536


class Names(NamedTuple):
    """The names of the selectors of one device: of the layer and of its three passes."""

    layer: str
    forward: str
    input_gradient: str
    weight_gradient: str


class Decisions:
    """The choices of all selectors of a layer, by selector and problem.

    The selectors report to `listener`. A decision holds until the selector withdraws it, after a
    failure or a drift. `on_change` is called after every change, because everything that was
    derived from the decisions may then be wrong.
    """

    def __init__(self, names: Names, as_is: str, on_change: Callable[[], object]) -> None:
        self._names = names
        self._as_is = as_is
        self._on_change = on_change
        self._chosen: dict[tuple[str, Hashable], str] = {}

    def listener(self, name: str) -> Callable[[Entry], None]:
        """Return the function that takes the journal entries of the selector `name`."""

        def listen(entry: Entry) -> None:
            if isinstance(entry, TrialEntry):
                return
            if isinstance(entry, DecisionEntry):
                self._chosen[name, entry.problem] = entry.alternative
            else:
                self._chosen.pop((name, entry.problem), None)
            if len(self._chosen) > _LIMIT:
                self._chosen = {}
            self._on_change()

        return listen

    def forward(self, met: ConvProblem | LayerProblem, problem: ConvProblem) -> tuple[str, str]:
        """Return how a layer is computed, and what computes its forward pass; "" if undecided."""
        name = self._chosen.get((self._names.forward, problem), "")
        if not isinstance(met, LayerProblem):
            return INDEPENDENT, name
        whole = self._chosen.get((self._names.layer, met), "")
        return whole, self._as_is if whole == JOINT else name

    def backward_is_joint(self, layer: LayerProblem, problem: ConvProblem) -> bool:
        """Return whether PyTorch's own kernel computes all gradients that a backward pass needs."""
        whole = self._chosen.get((self._names.layer, layer))
        if whole != INDEPENDENT:
            return whole == JOINT
        passes = (
            (layer.input, self._names.input_gradient),
            (layer.weight, self._names.weight_gradient),
        )
        return all(
            self._chosen.get((name, problem)) == self._as_is for wanted, name in passes if wanted
        )

    @property
    def joint(self) -> set[ConvProblem]:
        """The convolutions, without bias, that PyTorch's own kernels compute as a whole."""
        return {
            problem.convolution._replace(bias=False)  # type: ignore[attr-defined]
            for (name, problem), chosen in list(self._chosen.items())
            if name == self._names.layer and chosen == JOINT
        }
