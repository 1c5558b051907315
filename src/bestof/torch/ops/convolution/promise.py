"""The errors that rows of convolutions promise, scaled by what they sum."""

from __future__ import annotations

from collections.abc import Callable

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.convolution.direction import Direction
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.dtypes import own


def sums(problem: ConvProblem, direction: Direction) -> tuple[int, int]:
    """Return channels and taps of the sums of a pass; a weight gradient sums over the images."""
    n, k, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    return {
        "forward": (c, r * s),
        "input gradient": (k // problem.groups, r * s),
        "weight gradient": (n, p * q),
    }[direction]


def summed_in(problem: ConvProblem) -> str:
    """Return the dtype in which products are summed."""
    return own(problem.dtype).sums


def promise(bound: ErrorBound, direction: Direction) -> Callable[[ConvProblem], ErrorBound]:
    """Return the function from a problem to the bound of the sums of a pass.

    `bound` holds for float32, up to 512 channels.
    """

    def of(problem: ConvProblem) -> ErrorBound:
        return bound.scaled(sums(problem, direction)[0], summed_in(problem))

    return of
