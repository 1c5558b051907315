"""The three passes of a convolution."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.row import Row

Direction = Literal["forward", "input gradient", "weight gradient"]
DIRECTIONS: tuple[Direction, Direction, Direction] = (
    "forward",
    "input gradient",
    "weight gradient",
)

Pass: TypeAlias = Row[ConvProblem]
"""A row of one pass. Its function is (originals, problem, input, weight, bias) -> output, or
(originals, problem, grad_output, weight) -> gradient of the input, or (originals, problem,
grad_output, input) -> gradient of the weight."""

Passes: TypeAlias = tuple[Pass | None, Pass | None, Pass | None]
"""The rows of one implementation in the order of DIRECTIONS; None for a pass that it lacks."""

EVERYWHERE = ("CPU", "CUDA")
"""The dispatch keys of the devices for rows that are made of PyTorch's operations."""
