"""The alternatives of the three passes of a 2-D convolution, in order: the first is PyTorch as it is.

One more alternative is one more file and one more row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torch import Tensor

from bestof.kernels import isa
from bestof.torch.accuracy import allows
from bestof.torch.convolution import (
    as_is,
    channels_last,
    estimate,
    fft,
    forward_by_input_gradient,
    forward_by_weight_gradient,
    im2col,
    im2row,
    input_gradient_by_forward,
    native,
    native_bfloat16,
    other_dtype,
    weight_gradient_by_forward,
)
from bestof.torch.convolution.alternative import (
    BFLOAT16_INSIDE,
    DIRECT,
    SPECTRAL,
    Alternative,
    ErrorBound,
    summation_bound,
)
from bestof.torch.convolution.native_algorithms import NATIVE_ALGORITHMS
from bestof.torch.convolution.problem import ConvProblem


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The ordered alternatives of one pass."""

    direction: Literal["forward", "input gradient", "weight gradient"]
    alternatives: tuple[Alternative, ...]

    def applying(self, problem: ConvProblem) -> tuple[Alternative, ...]:
        """Those that support a problem at its level of accuracy."""
        return tuple(
            alternative
            for alternative in self.alternatives
            if allows(problem.accuracy, alternative.accuracy) and alternative.supports(problem)
        )

    def promising(self, problem: ConvProblem) -> frozenset[str]:
        """The names of those that apply and may win: the first, those without an estimate, and those estimated at no
        more than MARGIN times the cheapest (WINOGRAD_MARGIN, where that is one of Winograd's and they are not), or as
        too short to matter."""
        return _promising(self, problem)

    def cheapest(self, problem: ConvProblem) -> float:
        """The lowest estimate of those that apply."""
        return min(_estimates(self, problem).values())

    def as_is(self, problem: ConvProblem) -> float:
        """The estimate of PyTorch as is."""
        return _estimates(self, problem)[self.alternatives[0].name]

    def bound(self, alternative: Alternative, problem: ConvProblem) -> ErrorBound:
        """What an alternative promises for a problem: scaled by the channels that are summed over, which are the
        images of the batch where the gradient of the weight is wanted.

        Sums of bfloat16 products are taken in float32, and rounded once: PyTorch's own kernels do so where
        `other_dtype.has_bfloat16`, and promise nothing elsewhere.
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
    cheapest = min(estimates, key=estimates.__getitem__, default="")
    lowest = estimates.get(cheapest, 0.0)
    limit = max(estimate.MARGIN * lowest, estimate.SMALL)
    others = (
        max(estimate.WINOGRAD_MARGIN * lowest, estimate.SMALL)
        if _winograd_wins(cheapest, problem)
        else limit
    )
    rows = catalogue.applying(problem)
    return frozenset(
        row.name
        for row in rows
        if row is rows[0]
        or estimates.get(row.name, 0.0) <= (limit if row.name in _WINOGRAD_NAMES else others)
    )


def _winograd_wins(cheapest: str, problem: ConvProblem) -> bool:
    """Whether the cheapest is one of Winograd's, and may be believed: measured with AVX-512 alone."""
    channels = min(problem.weight_shape[:2])
    return (
        cheapest in _WINOGRAD_NAMES
        and channels >= estimate.WINOGRAD_CHANNELS
        and isa().startswith("avx")
    )


_WINOGRAD = {f"winograd{size}": estimate.winograd(size) for size in (2, 4, 6)}
_STRIDED = {
    "winograd3_s2": estimate.winograd_strided,
    "winograd3_7x7_s2": estimate.winograd_strided7,
}
_WINOGRAD_NAMES = frozenset(f"native {name}" for name in _WINOGRAD)


def _native(
    pass_: Callable[[str], Callable[..., Tensor]], direction: str, work: estimate.Estimate
) -> tuple[Alternative, ...]:
    estimates = {"direct": work, "convgemm": work, **_WINOGRAD, **_STRIDED}
    if direction == "backward_weight":
        estimates = {name: estimate.native_weight_gradient(one) for name, one in estimates.items()}
    return tuple(
        Alternative(
            f"native {row.name}",
            pass_(row.name),
            native.supports(row.name, direction),
            row.bound,
            estimates.get(row.name),
            row.accuracy,
            native.compiled_forward(row.name) if direction == "forward" else None,
        )
        for row in NATIVE_ALGORITHMS
    )


def _across_dtypes(
    pass_: Callable[[str], Callable[..., Tensor]],
    native_pass: Callable[[str], Callable[..., Tensor]],
    direction: str,
    work: estimate.Estimate,
    sound: Callable[[ConvProblem], bool] = lambda _: True,
) -> tuple[Alternative, ...]:
    """bfloat16 problems in float32, F(6) too, whose error is far below that of rounding the result; float32 problems
    in bfloat16."""
    estimates = {"direct": work, "convgemm": work, **_WINOGRAD, **_STRIDED}
    in_bfloat16 = other_dtype.supports("float32", "bfloat16")
    return (
        Alternative(
            "bfloat16",
            pass_("bfloat16"),
            lambda problem: in_bfloat16(problem) and sound(problem),
            BFLOAT16_INSIDE,
            None,
            "relaxed",
        ),
        Alternative(
            "float32",
            pass_("float32"),
            other_dtype.supports("bfloat16", "float32"),
            None,
            estimate.in_float32(work),
        ),
        *(
            Alternative(
                f"float32 native {row.name}",
                native_pass(row.name),
                native.supports(row.name, direction, "bfloat16"),
                row.bound,
                estimate.in_float32(estimates[row.name]) if row.name in estimates else None,
            )
            for row in NATIVE_ALGORITHMS
        ),
    )


def _is_sound_last(problem: ConvProblem) -> bool:
    return channels_last.supports(problem) and (
        problem.dtype != "bfloat16" or other_dtype.is_sound(problem)
    )


FORWARD = Catalogue(
    "forward",
    (
        Alternative("as is", as_is.forward, as_is.supports, None, estimate.as_is, "exact"),
        Alternative(
            "channels last",
            channels_last.forward,
            channels_last.supports,
            None,
            estimate.channels_last,
        ),
        Alternative("im2row", im2row.forward, im2row.supports, DIRECT, estimate.im2row),
        Alternative("im2col", im2col.forward, im2col.supports, DIRECT, estimate.im2col),
        Alternative("fft", fft.forward, fft.supports, SPECTRAL, estimate.fft),
        Alternative(
            "swap: weight gradient",
            forward_by_weight_gradient.forward,
            forward_by_weight_gradient.supports,
            None,
            estimate.forward_by_weight_gradient,
        ),
        Alternative(
            "swap: input gradient",
            forward_by_input_gradient.forward,
            forward_by_input_gradient.supports,
            None,
            estimate.forward_by_input_gradient,
        ),
        *_native(native.forward, "forward", estimate.channels_last),
        *_across_dtypes(other_dtype.forward, native.forward, "forward", estimate.channels_last),
        Alternative(
            "native bfloat16", native_bfloat16.forward, native_bfloat16.supports("bfloat16"), DIRECT
        ),
        Alternative(
            "bfloat16 native",
            native_bfloat16.forward,
            native_bfloat16.supports("float32"),
            BFLOAT16_INSIDE,
            accuracy="relaxed",
        ),
    ),
)

INPUT_GRADIENT = Catalogue(
    "input gradient",
    (
        Alternative(
            "as is",
            as_is.input_gradient,
            as_is.supports,
            None,
            estimate.as_is_input_gradient,
            "exact",
        ),
        Alternative(
            "channels last",
            channels_last.input_gradient,
            channels_last.supports,
            None,
            estimate.channels_last_input_gradient,
        ),
        Alternative("im2row", im2row.input_gradient, im2row.supports, DIRECT, estimate.im2row),
        Alternative("im2col", im2col.input_gradient, im2col.supports, DIRECT, estimate.im2col),
        Alternative("fft", fft.input_gradient, fft.supports, SPECTRAL, estimate.fft),
        Alternative(
            "swap: forward",
            input_gradient_by_forward.input_gradient,
            input_gradient_by_forward.supports,
            None,
            estimate.input_gradient_by_forward,
        ),
        *_native(native.input_gradient, "backward_input", estimate.channels_last_input_gradient),
        *_across_dtypes(
            other_dtype.input_gradient,
            native.input_gradient,
            "backward_input",
            estimate.channels_last_input_gradient,
        ),
    ),
)

WEIGHT_GRADIENT = Catalogue(
    "weight gradient",
    (
        Alternative("as is", as_is.weight_gradient, as_is.supports, None, estimate.as_is, "exact"),
        Alternative(
            "channels last",
            channels_last.weight_gradient,
            _is_sound_last,
            None,
            estimate.channels_last,
        ),
        Alternative("im2row", im2row.weight_gradient, im2row.supports, DIRECT, estimate.im2row),
        Alternative("im2col", im2col.weight_gradient, im2col.supports, DIRECT, estimate.im2col),
        Alternative("fft", fft.weight_gradient, fft.supports, SPECTRAL, estimate.fft),
        Alternative(
            "swap: forward",
            weight_gradient_by_forward.weight_gradient,
            weight_gradient_by_forward.supports,
            None,
            estimate.weight_gradient_by_forward,
        ),
        *_native(native.weight_gradient, "backward_weight", estimate.channels_last),
        *_across_dtypes(
            other_dtype.weight_gradient,
            native.weight_gradient,
            "backward_weight",
            estimate.channels_last,
            other_dtype.is_sound,
        ),
    ),
)

CATALOGUES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
