"""CUDA devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.backends.cuda.events import CudaTimer
from bestof.torch.backends.device import Device

_backends: Any = torch.backends  # has no annotations

SETTING = "benchmark"
"""Added to the name of a device if the program itself has switched cuDNN's benchmark on."""


def is_built() -> bool:
    """Return whether this PyTorch was built with CUDA.

    It does not look for devices, because a process that has done so can no longer fork.
    """
    return bool(_backends.cuda.is_built())


def _holds(tensor: Tensor) -> bool:
    """Return whether a tensor is on CUDA. Return False if cuDNN must be deterministic."""
    return tensor.is_cuda and not torch._C._get_cudnn_deterministic()


def _name(tensor: Tensor) -> str:
    words = [_model(tensor.device.index)]
    # `_get_cudnn_allow_tf32` raises if a program has set the precision by its newer name.
    if torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32":
        words.append("tf32")
    if torch._C._get_cudnn_benchmark():
        words.append(SETTING)
    return " ".join(words)


@cache
def _model(index: int) -> str:
    """Return the model of a device. Times are valid for one model only."""
    return "-".join(torch.cuda.get_device_name(index).split())


def _depends() -> tuple[str, ...]:
    try:
        cudnn = _backends.cudnn.version()
    # PyTorch was compiled for another version; its kernels will raise an error
    except RuntimeError:
        cudnn = None
    return f"cuda=={torch.version.cuda}", f"cudnn=={cudnn}"


CUDA = Device("CUDA", "cuda ", _holds, _name, _depends, CudaTimer())
"""All CUDA devices. Their names contain the model."""
