"""The native convolutions that PyTorch programs are offered: their promises, and the accuracy that allows them."""

from __future__ import annotations

from dataclasses import dataclass

from bestof.kernels import algorithms
from bestof.torch.accuracy import Accuracy
from bestof.torch.convolution.alternative import ErrorBound


@dataclass(frozen=True, slots=True)
class NativeAlgorithm:
    """An algorithm of `bestof.kernels` by its name there; `accuracy` is the strictest level that allows it."""

    name: str
    bound: ErrorBound
    accuracy: Accuracy = "float32"


NATIVE_ALGORITHMS = tuple(
    NativeAlgorithm(row.name, ErrorBound(row.error.rms, row.error.maximum), row.accuracy)
    for row in algorithms().values()
    if row.eager
)
"""The rows of the native table that are worth trying in eager programs, in its order."""
