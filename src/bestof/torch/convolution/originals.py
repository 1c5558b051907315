"""PyTorch's own kernels of the convolution and of its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Originals:
    """The two kernels that alternatives may call in place of the dispatcher.

    convolution: (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> Tensor
    convolution_backward: (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask) -> (grad_input, grad_weight, grad_bias), None where the mask says False
    """

    convolution: Callable[..., Any]
    convolution_backward: Callable[..., Any]
