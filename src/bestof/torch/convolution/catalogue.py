"""The alternatives of the three passes of a 2-D convolution, in order: the first is PyTorch as it is.

One more alternative is one more file and one more row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bestof.torch.convolution import (
    as_is,
    channels_last,
    fft,
    forward_by_input_gradient,
    forward_by_weight_gradient,
    im2col,
    im2row,
    input_gradient_by_forward,
    weight_gradient_by_forward,
)
from bestof.torch.convolution.alternative import Alternative, ErrorBound
from bestof.torch.convolution.problem import ConvProblem

DIRECT = ErrorBound(rms=1e-6, maximum=1e-5)
SPECTRAL = ErrorBound(rms=2e-6, maximum=2e-5)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The ordered alternatives of one pass."""

    direction: Literal["forward", "input gradient", "weight gradient"]
    alternatives: tuple[Alternative, ...]

    def applying(self, problem: ConvProblem) -> tuple[Alternative, ...]:
        """Those that support a problem."""
        return tuple(alternative for alternative in self.alternatives if alternative.supports(problem))

    def bound(self, alternative: Alternative, problem: ConvProblem) -> ErrorBound:
        """What an alternative promises for a problem: scaled by the channels that are summed over, which are the
        images of the batch where the gradient of the weight is wanted."""
        if self.direction == "forward":
            summed = problem.weight_shape[1]
        elif self.direction == "input gradient":
            summed = problem.weight_shape[0] // problem.groups
        else:
            summed = problem.input_shape[0]
        return alternative.bound.scaled(summed, problem.dtype)


FORWARD = Catalogue(
    "forward",
    (
        Alternative("as is", as_is.forward, as_is.supports, DIRECT),
        Alternative("channels last", channels_last.forward, channels_last.supports, DIRECT),
        Alternative("im2row", im2row.forward, im2row.supports, DIRECT),
        Alternative("im2col", im2col.forward, im2col.supports, DIRECT),
        Alternative("fft", fft.forward, fft.supports, SPECTRAL),
        Alternative(
            "swap: weight gradient", forward_by_weight_gradient.forward, forward_by_weight_gradient.supports, DIRECT
        ),
        Alternative(
            "swap: input gradient", forward_by_input_gradient.forward, forward_by_input_gradient.supports, DIRECT
        ),
    ),
)

INPUT_GRADIENT = Catalogue(
    "input gradient",
    (
        Alternative("as is", as_is.input_gradient, as_is.supports, DIRECT),
        Alternative("channels last", channels_last.input_gradient, channels_last.supports, DIRECT),
        Alternative("im2row", im2row.input_gradient, im2row.supports, DIRECT),
        Alternative("im2col", im2col.input_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.input_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward", input_gradient_by_forward.input_gradient, input_gradient_by_forward.supports, DIRECT
        ),
    ),
)

WEIGHT_GRADIENT = Catalogue(
    "weight gradient",
    (
        Alternative("as is", as_is.weight_gradient, as_is.supports, DIRECT),
        Alternative("channels last", channels_last.weight_gradient, channels_last.supports, DIRECT),
        Alternative("im2row", im2row.weight_gradient, im2row.supports, DIRECT),
        Alternative("im2col", im2col.weight_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.weight_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward", weight_gradient_by_forward.weight_gradient, weight_gradient_by_forward.supports, DIRECT
        ),
    ),
)

CATALOGUES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
