"""Which algorithm runs a step of a plan."""

from __future__ import annotations

from bestof.torch.plan.algorithms.table import PYTORCH, algorithm
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.layers.raced_problem import RacedProblem


class Choice:
    """The algorithm of one step of a program: the only place where it is kept.

    A choice starts open. It is settled once: by the selector's decision, by a plan file, by a limit
    of memory, or by verification, which replaces a wrong algorithm. All bindings of a program share
    its choices, and bind to the algorithm when they next look. A limit of memory holds for all
    layers with the same weights, also for shapes that are planned later: otherwise each shape would
    keep the weights in a layout of its own.
    """

    def __init__(
        self, problem: FusedProblem | RacedProblem, weights: FrozenWeights | None = None
    ) -> None:
        self.problem, self._weights = problem, weights
        self._algorithm: str | None = None
        self.is_ordered = False

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm; None while the choice is open."""
        only = None if self._weights is None else self._weights.limited_to
        if self._algorithm is None and only is not None:
            assert isinstance(self.problem, FusedProblem)
            self.is_ordered = True
            self._algorithm = only if algorithm(only).can_run(self.problem) else PYTORCH.name
        return self._algorithm

    def take(self, decision: str) -> None:
        """Take the selector's decision, which holds for the number of threads in use now."""
        self._algorithm = decision

    def settle(self, name: str) -> None:
        """Order an algorithm, in place of an earlier one too, for every number of threads."""
        self._algorithm, self.is_ordered = name, True
        if self._weights is not None and self._weights.limited_to is not None:
            self._weights.limited_to = name

    def limit(self, name: str) -> None:
        """Take an algorithm, for all layers with the same weights."""
        assert self._weights is not None
        self._weights.limited_to = name
        self.settle(name)
