"""CUDA devices, as an override of convolutions sees them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.convolution.catalogue import catalogues
from bestof.torch.cuda.cudnn_benchmark import SETTING
from bestof.torch.cuda.events import CudaTimer
from bestof.torch.device import Device

_backends: Any = torch.backends  # has no annotations


def is_built() -> bool:
    """Whether this PyTorch can have tensors there. Looks for no device: a process that did could fork no other."""
    return bool(_backends.cuda.is_built())


def _holds(tensor: Tensor) -> bool:
    """Where cuDNN is to be deterministic, PyTorch's own kernels are what was asked for."""
    return tensor.is_cuda and not torch._C._get_cudnn_deterministic()


def _name(tensor: Tensor) -> str:
    words = [_model(tensor.device.index)]
    # Not `_get_cudnn_allow_tf32`, which raises once a program has set the precision by its newer name.
    if torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32":
        words.append("tf32")
    if torch._C._get_cudnn_benchmark():
        words.append(SETTING)
    return " ".join(words)


@cache
def _model(index: int) -> str:
    """Of the device, so that times of one are no evidence for another."""
    return "-".join(torch.cuda.get_device_name(index).split())


def _depends() -> tuple[str, ...]:
    try:
        cudnn = _backends.cudnn.version()
    except RuntimeError:  # another one than PyTorch was compiled for: its kernels will say so, the processor's need not
        cudnn = None
    return f"cuda=={torch.version.cuda}", f"cudnn=={cudnn}"


CUDA = Device("CUDA", "cuda convolution", catalogues("cuda"), _holds, _name, _depends, CudaTimer())
"""Whichever there are; each model of them is a device of its own."""
