"""A row of a catalogue: one implementation of one pass of a convolution, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from bestof.torch.convolution.problem import ConvProblem


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """How far a float32 result may be from the float64 one, both relative to the root mean square of the latter.

    `rms` bounds the root mean square of the error, `maximum` its largest magnitude.
    """

    rms: float
    maximum: float

    def scaled(self, channels: int, dtype: str) -> ErrorBound:
        """The bound for a sum over that many channels (unchanged up to 512, then by the square root) and dtype."""
        factor = max(1.0, sqrt(channels / 512))
        factor *= torch.finfo(getattr(torch, dtype)).eps / torch.finfo(torch.float32).eps
        return ErrorBound(self.rms * factor, self.maximum * factor)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One implementation. `supports` is the only polite refusal: where it says yes, the function answers.

    The function never changes its arguments, and returns a tensor of its own with the shape, dtype and strides that
    PyTorch would return. Arguments: forward (originals, input, weight, bias, problem), input gradient (originals,
    grad_output, weight, problem), weight gradient (originals, grad_output, input, problem).
    """

    name: str
    function: Callable[..., Tensor]
    supports: Callable[[ConvProblem], bool]
    bound: ErrorBound
