"""The catalogues: the ordered alternatives of each pass, on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from bestof.accuracy import allows
from bestof.kernels import has_wide_vectors
from bestof.torch.convolution.alternative import Alternative, ErrorBound, summation_bound
from bestof.torch.convolution.estimate import (
    MARGIN,
    SMALL,
    WINOGRAD_CHANNELS,
    WINOGRAD_MARGIN,
)
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.row import DIRECTIONS, Direction, Kind
from bestof.torch.convolution.table import NATIVE, ROWS

_WINOGRAD = frozenset(
    f"native {row.name}" for row in NATIVE if (row.kernel, row.stride) == ((3, 3), 1)
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The ordered alternatives of one pass. The first is PyTorch's own kernel."""

    direction: Direction
    alternatives: tuple[Alternative, ...]

    def applying(self, problem: ConvProblem) -> tuple[Alternative, ...]:
        """Return the alternatives that support a problem at its level of accuracy."""
        return tuple(
            alternative
            for alternative in self.alternatives
            if allows(problem.accuracy, alternative.accuracy) and alternative.supports(problem)
        )

    def promising(self, problem: ConvProblem) -> frozenset[str]:
        """Return the names of the alternatives that apply and may win.

        These are the first one, those without an estimate, and those whose estimate is at most
        MARGIN times the cheapest one or below SMALL. Where Winograd wins, WINOGRAD_MARGIN holds for
        the other algorithms.
        """
        return _promising(self, problem)

    def winograd_wins(self, problem: ConvProblem) -> bool:
        """Return whether a Winograd algorithm is estimated to be cheapest, and can be trusted.

        The estimate is trusted from WINOGRAD_CHANNELS channels and filters on, where the
        instruction set is AVX2 or better: only those were measured. Programs without a plan and
        plans both ask this: the plan then tries one native kernel that computes every product. On
        78 random frozen layers of 2x2 pixels, where Winograd is least ahead, the others beat all
        that remained by at most 7 %, and by none in the median (AVX-512, one thread).
        """
        estimates = _estimates(self, problem)
        return (
            min(estimates, key=estimates.__getitem__, default="") in _WINOGRAD
            and min(problem.weight_shape[:2]) >= WINOGRAD_CHANNELS
            and has_wide_vectors()
        )

    def estimates(self, problem: ConvProblem) -> Mapping[str, float]:
        """Return the estimates of the alternatives that apply and have one, by name."""
        return _estimates(self, problem)

    def cheapest(self, problem: ConvProblem) -> float:
        """Return the lowest estimate of the alternatives that apply."""
        return min(_estimates(self, problem).values())

    def as_is(self, problem: ConvProblem) -> float:
        """Return the estimate of PyTorch's own kernel."""
        return _estimates(self, problem)[self.alternatives[0].name]

    def bound(self, alternative: Alternative, problem: ConvProblem) -> ErrorBound:
        """Return the error that an alternative promises for a problem.

        It is scaled by the channels of the sums; a weight gradient sums over the images of the
        batch. Sums of bfloat16 products are taken in float32 and rounded once. PyTorch's own
        kernels do so if `other_dtype.has_bfloat16`, and promise nothing elsewhere.
        """
        n, k, p, q = problem.output_shape
        _, c, r, s = problem.weight_shape
        channels, taps = {
            "forward": (c, r * s),
            "input gradient": (k // problem.groups, r * s),
            "weight gradient": (n, p * q),
        }[self.direction]
        rounds = problem.dtype == "bfloat16"
        dtype = "float32" if rounds else problem.dtype
        if alternative.bound is None:
            bound = summation_bound(channels * taps, dtype)
        else:
            bound = alternative.bound.scaled(channels, dtype)
        return bound.rounded() if rounds else bound


@lru_cache(maxsize=1024)
def _estimates(catalogue: Catalogue, problem: ConvProblem) -> dict[str, float]:
    rows = catalogue.applying(problem)
    return {row.name: row.estimate(problem) for row in rows if row.estimate is not None}


@lru_cache(maxsize=1024)
def _promising(catalogue: Catalogue, problem: ConvProblem) -> frozenset[str]:
    estimates = _estimates(catalogue, problem)
    lowest = min(estimates.values(), default=0.0)
    limit = max(MARGIN * lowest, SMALL)
    others = limit
    if catalogue.winograd_wins(problem):
        others = max(WINOGRAD_MARGIN * lowest, SMALL)
    rows = catalogue.applying(problem)
    return frozenset(
        row.name
        for row in rows
        if row is rows[0]
        or estimates.get(row.name, 0.0) <= (limit if row.name in _WINOGRAD else others)
    )


def catalogues(kind: Kind) -> tuple[Catalogue, Catalogue, Catalogue]:
    """Return the catalogues of the forward pass, the input gradient and the weight gradient."""
    forward, input_gradient, weight_gradient = (
        Catalogue(
            direction,
            tuple(
                alternative
                for row in ROWS
                if (alternative := row.alternative(direction, kind)) is not None
            ),
        )
        for direction in DIRECTIONS
    )
    return forward, input_gradient, weight_gradient


CATALOGUES = catalogues("cpu")
"""Those of the CPU."""
CATALOGUES_OF = {"convolution": CATALOGUES, "cuda convolution": catalogues("cuda")}
"""Those of each kind of device, by the first words of its selectors' names."""
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = CATALOGUES
