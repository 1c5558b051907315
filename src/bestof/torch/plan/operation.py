"""What our kernels compute in a plan, as values: fused convolutions, linear layers and poolings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bestof.torch.plan.frozen_weights import FrozenWeights

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Convolution:
    """activation(x * w + bias + residual), x (N, C, H, W). `linear`: x (..., I), one pixel a row."""

    weights: FrozenWeights
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    activation: str = ""
    slope: float = 0.0
    linear: bool = False

    def apply(self, x: Tensor, residual: Tensor | None, weight: Tensor) -> Tensor:
        """The same by PyTorch's own operators, with the folded `weight`; may change `residual`, never x."""
        if self.linear:
            y = F.linear(x, weight, self.weights.bias)
        else:
            y = F.conv2d(
                x, weight, self.weights.bias, self.stride, self.padding, self.dilation, self.groups
            )
        if residual is not None:
            y = y.add_(residual)
        return activate(y, self.activation, self.slope)


@dataclass(frozen=True, slots=True)
class Pooling:
    """The maximum or average of every window of x (N, C, H, W)."""

    kind: str
    kernel: Pair
    stride: Pair
    padding: Pair
    count_padding: bool

    def __str__(self) -> str:
        return f"{self.kind} pooling {self.kernel[0]}x{self.kernel[1]}"


MAX_2X2 = Pooling("max", (2, 2), (2, 2), (0, 0), count_padding=True)
"""What some convolutions do on the way to memory."""


def may_be_pooled(operation: Convolution, pool: Pooling) -> bool:
    """Whether a pooling may be part of a convolution's step: by kernels that bound results, not by those that fall and
    rise again; and only 3x3 kernels without strides, for Winograd's algorithms are those that pool."""
    alike = (pool.kind, pool.kernel, pool.stride, pool.padding) == ("max", (2, 2), (2, 2), (0, 0))
    rises = operation.activation in ("", "relu", "relu6") or (
        operation.activation == "leaky_relu" and operation.slope >= 0
    )
    winograd = operation.weights.weight.shape[2:] == (3, 3) and operation.groups == 1
    return alike and rises and winograd and operation.stride == operation.dilation == (1, 1)


def activate(y: Tensor, activation: str, slope: float) -> Tensor:
    """The activation that kernels call by this name, in place."""
    return y if not activation else _ACTIVATIONS[activation](y, slope)


_ACTIVATIONS: dict[str, Any] = {
    "relu": lambda y, _: torch.relu_(y),
    "relu6": lambda y, _: F.hardtanh_(y, 0.0, 6.0),
    "silu": lambda y, _: F.silu(y, inplace=True),
    "hard_swish": lambda y, _: F.hardswish(y, inplace=True),
    "leaky_relu": F.leaky_relu_,
}
