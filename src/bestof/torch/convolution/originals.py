"""What alternatives use beside their operands: PyTorch's own kernels and packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bestof.errors import TorchError
from bestof.torch.convolution.packed_weights import PackedWeightsCache

OPERATORS = ("aten::convolution", "aten::convolution_backward")


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


def originals(key: str = "CPU") -> Originals:
    """Return the kernels in place at present for a dispatch key.

    They are PyTorch's own unless something was enabled before. Raises TorchError if PyTorch cannot
    hand its kernels out.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise TorchError(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which bestof keeps "
            f"PyTorch's own convolution as the first alternative; install torch 2.13 or newer"
        )
    return Originals(*(_original(name, key) for name in OPERATORS))


def _original(name: str, key: str) -> Any:
    call = torch.library.get_kernel(name, key).call_boxed
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(call, keyset)
