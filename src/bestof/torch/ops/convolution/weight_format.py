"""The strides of a weight gradient, as PyTorch's own kernel returns them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.memory_format import in_format

_backend: Any = getattr(torch._C, "_select_conv_backend", None)


def in_weight_format(gradient: Tensor, problem: ConvProblem) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S) with the strides that PyTorch would give.

    It is copied only if it must be. A weight of one pixel or one channel is in both formats at
    once. oneDNN's gradient of such a weight is in the format of the layer; PyTorch's other kernels
    keep the strides of the weight.
    """
    last = problem.channels_last
    _, channels, *kernel = problem.weight_shape
    is_ambiguous = channels == 1 or kernel == [1, 1]
    if last and is_ambiguous and problem.weight_layout == "channels_first" and not problem.device:
        last = _computes_onednn(problem, torch.backends.mkldnn.enabled)
    return in_format(gradient, last)


@lru_cache(maxsize=1024)
def _computes_onednn(problem: ConvProblem, _is_enabled: bool) -> bool:
    """Return whether PyTorch hands a convolution to oneDNN; True if it does not tell."""
    if _backend is None:
        return True
    dtype = getattr(torch, problem.dtype)
    formats = {"channels_last": torch.channels_last}
    x, w = (
        torch.empty(
            shape, dtype=dtype, memory_format=formats.get(layout, torch.contiguous_format)
        )  # whose pages are never touched
        for shape, layout in (
            (problem.input_shape, problem.input_layout),
            (problem.weight_shape, problem.weight_layout),
        )
    )
    geometry = (problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups)
    return "Mkldnn" in str(_backend(x, w, None, *geometry, None))
