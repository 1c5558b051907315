"""PyTorch's own convolution, and what rows use beside it: packed weights, and a count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache
from bestof.torch.ops.convolution.refused import Refused
from bestof.torch.ops.pytorch_kernel import kernels_of, keys_of

OPERATORS = ("aten::convolution", "aten::convolution_backward")


@dataclass(frozen=True, slots=True)
class PyTorchConv:
    """PyTorch's own kernels, which rows call past the dispatcher, and the packed weights.

    convolution: (input, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups)
        -> output
    convolution_backward: (grad_output, input, weight, bias_sizes, stride, padding, dilation,
        transposed, output_padding, groups, output_mask) -> (grad_input, grad_weight, grad_bias);
        a gradient that the mask excludes is None
    packed: None if no packed weights are kept
    refused: counts the calls that rows hand on to these kernels
    """

    convolution: Callable[..., Any]
    convolution_backward: Callable[..., Any]
    packed: PackedWeightsCache | None = None
    refused: Refused = field(default_factory=Refused)


def pytorch_conv(key: str = "CPU") -> PyTorchConv:
    """Return the kernels in place at present for a dispatch key.

    They are PyTorch's own unless something was enabled before. Raises TorchError if PyTorch cannot
    hand its kernels out.
    """
    forward, backward = (
        partial(one.call_boxed, keys_of(key)) for one in kernels_of(OPERATORS, key)
    )
    return PyTorchConv(forward, backward)
