"""The alternatives of the three passes of a 2-D convolution, in order: the first is PyTorch as it is.

One more alternative is one more file and one more row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bestof.torch.convolution import (
    as_is,
    channels_last,
    fft,
    forward_by_input_gradient,
    forward_by_weight_gradient,
    im2col,
    im2row,
    input_gradient_by_forward,
    native,
    weight_gradient_by_forward,
)
from bestof.torch.convolution.alternative import DIRECT, SPECTRAL, Alternative, ErrorBound, summation_bound
from bestof.torch.convolution.problem import ConvProblem


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
        n, k, p, q = problem.output_shape
        _, c, r, s = problem.weight_shape
        channels, taps = {
            "forward": (c, r * s),
            "input gradient": (k // problem.groups, r * s),
            "weight gradient": (n, p * q),
        }[self.direction]
        if alternative.bound is None:
            return summation_bound(channels * taps, problem.dtype)
        return alternative.bound.scaled(channels, problem.dtype)


# What our kernels offer within the accuracy of float32, with the bounds that they promise; F(6), and F(4) of 5x5, are
# beyond it.
_NATIVE = {
    "direct": DIRECT,
    "convgemm": DIRECT,
    "winograd2": ErrorBound(rms=2e-6, maximum=1e-5),
    "winograd4": ErrorBound(rms=5e-6, maximum=5e-5),
    "winograd4_1x7": ErrorBound(rms=5e-6, maximum=5e-5),
    "winograd4_7x1": ErrorBound(rms=5e-6, maximum=5e-5),
    "winograd2_5x5": ErrorBound(rms=5e-6, maximum=5e-5),
    "depthwise": DIRECT,
}


def _native(pass_: Callable[[str], Callable[..., Tensor]], direction: str) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(f"native {name}", pass_(name), native.supports(name, direction), bound)
        for name, bound in _NATIVE.items()
    )


FORWARD = Catalogue(
    "forward",
    (
        Alternative("as is", as_is.forward, as_is.supports, None),
        Alternative("channels last", channels_last.forward, channels_last.supports, None),
        Alternative("im2row", im2row.forward, im2row.supports, DIRECT),
        Alternative("im2col", im2col.forward, im2col.supports, DIRECT),
        Alternative("fft", fft.forward, fft.supports, SPECTRAL),
        Alternative(
            "swap: weight gradient", forward_by_weight_gradient.forward, forward_by_weight_gradient.supports, None
        ),
        Alternative(
            "swap: input gradient", forward_by_input_gradient.forward, forward_by_input_gradient.supports, None
        ),
        *_native(native.forward, "forward"),
    ),
)

INPUT_GRADIENT = Catalogue(
    "input gradient",
    (
        Alternative("as is", as_is.input_gradient, as_is.supports, None),
        Alternative("channels last", channels_last.input_gradient, channels_last.supports, None),
        Alternative("im2row", im2row.input_gradient, im2row.supports, DIRECT),
        Alternative("im2col", im2col.input_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.input_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward", input_gradient_by_forward.input_gradient, input_gradient_by_forward.supports, None
        ),
        *_native(native.input_gradient, "backward_input"),
    ),
)

WEIGHT_GRADIENT = Catalogue(
    "weight gradient",
    (
        Alternative("as is", as_is.weight_gradient, as_is.supports, None),
        Alternative("channels last", channels_last.weight_gradient, channels_last.supports, None),
        Alternative("im2row", im2row.weight_gradient, im2row.supports, DIRECT),
        Alternative("im2col", im2col.weight_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.weight_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward", weight_gradient_by_forward.weight_gradient, weight_gradient_by_forward.supports, None
        ),
        *_native(native.weight_gradient, "backward_weight"),
    ),
)

CATALOGUES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
