"""A fused convolution or linear layer, as a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bestof.torch.plan.layers.activations import activation_of
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.trace.graph import Pair


@dataclass(frozen=True, slots=True)
class Layer:
    """activation(x * w + bias + residual), then the largest of each 2x2 results if `pooled`.

    x, residual: (N, C, H, W), and (rows, features) if `linear`. gated: the result is multiplied by
    a gate, (rows, features) too. Gated layers are linear, and have no residual.
    weights: folded with the batch norm that follows. slope: of the activation, below zero.
    """

    weights: FrozenWeights
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    activation: str = ""
    slope: float = 0.0
    linear: bool = False
    pooled: bool = False
    gated: bool = False

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, int]:
        """(stride, padding, dilation, groups), in the order of `conv2d`."""
        return self.stride, self.padding, self.dilation, self.groups

    def extents(self, height: int, width: int) -> tuple[int, ...]:
        """Return the rows and columns that a convolution makes of an image, before pooling."""
        kernel = self.weights.weight.shape[2:]
        given = zip(
            *((height, width), kernel, self.padding, self.stride, self.dilation), strict=True
        )
        return tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, p, s, d in given)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x * weight + bias by PyTorch's own operator."""
        if self.linear:
            return F.linear(x, weight, bias)
        return F.conv2d(x, weight, bias, *self.geometry)

    def activate(self, y: Tensor) -> Tensor:
        """Apply the activation in place, by PyTorch."""
        return activation_of(self.activation).apply(y, self.slope)

    def apply(self, x: Tensor, residual: Tensor | None, weight: Tensor) -> Tensor:
        """Return the results before pooling or the gate, by PyTorch, with the folded `weight`."""
        y = self.product(x, weight, self.weights.bias)
        if residual is not None:
            y = y.add_(residual)
        return self.activate(y)
