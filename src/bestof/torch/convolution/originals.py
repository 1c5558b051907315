"""What alternatives may use beside their operands: PyTorch's own kernels, and weights that were packed before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bestof.torch.convolution.packed_weights import PackedWeightsCache


@dataclass(frozen=True, slots=True)
class Originals:
    """The two kernels that alternatives may call in place of the dispatcher, and where packed weights are kept.

    convolution: (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> Tensor
    convolution_backward: (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask) -> (grad_input, grad_weight, grad_bias), None where the mask says False
    packed: None where none are kept
    """

    convolution: Callable[..., Any]
    convolution_backward: Callable[..., Any]
    packed: PackedWeightsCache | None = None
