"""One selector for the fused layers of all plans of the process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from bestof.selection import Alternative, BestOf, Race, unless_shared
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.ops.convolution.neighbourhood import Neighbourhood
from bestof.torch.plan.algorithms.algorithm import Algorithm
from bestof.torch.plan.algorithms.table import table
from bestof.torch.plan.layers.problem import FusedProblem

# All layers of a plan race at once, in the running plan. One round more is one call of the whole
# model for each alternative, while a user waits; near-ties are not worth that.
_POLICY = Race(max_trials=12)


@cache
def selector() -> BestOf:
    """Return the selector. It is called with a `ConvolutionStep`, and runs it by an algorithm."""
    return BestOf(
        "fused convolution",
        [
            Alternative(row.name, _by(row), DEPENDS, supports=_supports(row))
            for row in table().values()
        ],
        lambda step: step.problem,
        policy=unless_shared(_POLICY),
        neighbours=neighbourhood(),
    )


def neighbourhood() -> Neighbourhood[FusedProblem]:
    """Return the neighbours of fused layers: the same layer, with other batches or image sizes."""
    return Neighbourhood(lambda problem: problem.batched, lambda problem: problem[1:])


def _supports(row: Algorithm) -> Callable[[Any], bool]:
    return row.supports


def _by(row: Algorithm) -> Callable[[Any], None]:
    name = row.name

    def run(step: Any) -> None:
        step.runner(name)()

    return run
