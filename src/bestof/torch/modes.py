"""Kernels in Python, as modes of PyTorch see them: not at all, like kernels in C++.

A mode such as `torch.device("meta")` changes what `torch.empty` returns. PyTorch switches it off
while it runs an operator, but TorchScript and the autograd engine reach a kernel with the mode
still on. So a kernel begins with

    if are_modes_on():
        return without_modes(kernel, ...)

A decorator would be shorter, but costs each call a second frame of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_Hidden: Any = torch._C.DisableTorchFunction  # has no annotations

are_modes_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Whether a function mode is active, and not switched off."""


def without_modes(kernel: Callable[..., Result], *args: Any) -> Result:
    """Return the result of the kernel, run without the function modes that are active."""
    with _Hidden():
        return kernel(*args)
