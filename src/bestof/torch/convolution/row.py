"""A row of the table of alternatives: one implementation with its three passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.backends.shim import Native
from bestof.torch.convolution.alternative import Alternative, ErrorBound, Reach
from bestof.torch.convolution.estimate import Estimate
from bestof.torch.convolution.problem import ConvProblem

Direction = Literal["forward", "input gradient", "weight gradient"]
DIRECTIONS: tuple[Direction, Direction, Direction] = (
    "forward",
    "input gradient",
    "weight gradient",
)
Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Way:
    """How an implementation computes one pass; the fields are those of `Alternative`."""

    function: Callable[..., Tensor]
    supports: Callable[[ConvProblem], bool]
    estimate: Estimate | None = None
    compiled: Callable[[ConvProblem], Native] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation. A pass that it does not have is None.

    `bound`, `accuracy` and `reach` are those of `Alternative`. `kinds` are the devices that it is
    tried on.
    Estimates hold for the processor only: on CUDA a race drops at its second call what is far
    behind.
    """

    name: str
    forward: Way | None
    input_gradient: Way | None
    weight_gradient: Way | None
    bound: ErrorBound | None = None
    accuracy: Accuracy = "float32"
    kinds: tuple[Kind, ...] = ("cpu",)
    reach: Reach = "own"

    def alternative(self, direction: Direction, kind: Kind) -> Alternative | None:
        """Return this row's alternative for one pass on one kind of device; None if it has none."""
        ways = (self.forward, self.input_gradient, self.weight_gradient)
        way = ways[DIRECTIONS.index(direction)]
        if way is None or kind not in self.kinds:
            return None
        return Alternative(
            self.name,
            way.function,
            way.supports,
            self.bound,
            way.estimate if kind == "cpu" else None,
            self.accuracy,
            way.compiled if kind == "cpu" else None,
            self.reach,
        )
