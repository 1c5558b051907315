"""Our native convolutions as PyTorch is offered them: what each promises, and who may get it."""

from __future__ import annotations

from dataclasses import dataclass

from bestof.torch.accuracy import Accuracy
from bestof.torch.convolution.alternative import DIRECT, ErrorBound


@dataclass(frozen=True, slots=True)
class NativeAlgorithm:
    """An algorithm of `bestof.kernels` by its name there; `accuracy` is the strictest level that allows it."""

    name: str
    bound: ErrorBound
    accuracy: Accuracy = "float32"


_WINOGRAD4 = ErrorBound(rms=5e-6, maximum=5e-5)
_WINOGRAD6 = ErrorBound(rms=2.5e-5, maximum=3e-4)

NATIVE_ALGORITHMS = (
    NativeAlgorithm("direct", DIRECT),
    NativeAlgorithm("convgemm", DIRECT),
    NativeAlgorithm("winograd2", ErrorBound(rms=2e-6, maximum=1e-5)),
    NativeAlgorithm("winograd4", _WINOGRAD4),
    NativeAlgorithm("winograd6", _WINOGRAD6, "relaxed"),
    NativeAlgorithm("winograd4_1x7", _WINOGRAD4),
    NativeAlgorithm("winograd4_7x1", _WINOGRAD4),
    NativeAlgorithm("winograd2_5x5", _WINOGRAD4),
    NativeAlgorithm("winograd4_5x5", _WINOGRAD6, "relaxed"),
    NativeAlgorithm("winograd3_s2", ErrorBound(rms=2e-6, maximum=1e-5)),
    NativeAlgorithm("winograd3_7x7_s2", ErrorBound(rms=2e-6, maximum=1e-5)),
    NativeAlgorithm("depthwise", DIRECT),
)
"""The native im2row is not among them: it stands within a few percent of convgemm, and PyTorch has its own."""
