"""The activations in float64. One test holds that no activation of the kernels is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bestof.kernels.problem import Activation

Float64 = NDArray[np.float64]


class Reference(NamedTuple):
    """An activation of float64, and its largest derivative, which scales errors of its argument."""

    value: Callable[[Float64], Float64]
    steepest: float = 1.0


REFERENCES: dict[Activation, Reference] = {
    None: Reference(lambda v: v),
    "relu": Reference(lambda v: np.maximum(v, 0)),
    "relu6": Reference(lambda v: np.clip(v, 0, 6)),
    "leaky_relu": Reference(lambda v: np.where(v < 0, 0.01 * v, v)),
    ("leaky_relu", 0.3): Reference(lambda v: np.where(v < 0, 0.3 * v, v)),
    "silu": Reference(lambda v: v / (1 + np.exp(-v)), 1.1),
    "hard_swish": Reference(lambda v: v * np.clip(v + 3, 0, 6) / 6, 1.5),
    "gelu": Reference(lambda v: v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))) / 2, 1.13),
    "gelu_tanh": Reference(
        lambda v: v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2, 1.13
    ),
}
