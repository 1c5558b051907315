"""What alternatives use beside their operands: PyTorch's own kernels and packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bestof.torch.convolution.packed_weights import PackedWeightsCache


@dataclass(frozen=True, slots=True)
class Originals:
    """PyTorch's kernels, which alternatives call past the dispatcher, and the packed weights.

    convolution: (input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups)
        -> output
    convolution_backward: (grad_output, input, weight, bias_sizes, stride, padding, dilation,
        transposed, output_padding, groups, output_mask) -> (grad_input, grad_weight, grad_bias);
        a gradient that the mask excludes is None
    packed: None if no packed weights are kept
    """

    convolution: Callable[..., Any]
    convolution_backward: Callable[..., Any]
    packed: PackedWeightsCache | None = None
