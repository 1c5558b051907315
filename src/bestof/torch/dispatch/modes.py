"""Hides Python kernels from PyTorch's modes, which do not see kernels in C++ either.

A mode such as `torch.device("meta")` changes what `torch.empty` returns. PyTorch switches modes off
while it runs an operator. TorchScript and the autograd engine do not: they call a kernel with the
mode still on. So a kernel begins with

    if are_modes_on():
        return without_modes(kernel, ...)

A decorator would be shorter, but would cost each call another Python frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_Hidden: Any = torch._C.DisableTorchFunction  # has no annotations

are_modes_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Return whether a function mode is active and not switched off."""


def without_modes(kernel: Callable[..., Result], *args: Any) -> Result:
    """Return the result of the kernel, run without the active function modes."""
    with _Hidden():
        return kernel(*args)
