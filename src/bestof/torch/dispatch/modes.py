"""Hides Python kernels from PyTorch's modes, which do not see kernels in C++ either.

A mode such as `torch.device("meta")` changes what `torch.empty` returns, and autocast the type of a
product. PyTorch switches modes off while it runs an operator. TorchScript and the autograd engine
do not: they call a kernel with the mode still on. So a kernel begins with

    if are_modes_on():
        return without_modes(kernel, ...)

A decorator would be shorter, but would cost each call another Python frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_Hidden: Any = torch._C.DisableTorchFunction  # has no annotations, as the next one
_WithoutAutocast: Any = torch._C._DisableAutocast
_is_mode_on = torch._C._is_torch_function_mode_enabled
_is_autocast_on = torch._C._is_any_autocast_enabled


def are_modes_on() -> bool:
    """Return whether a function mode or autocast is active and not switched off."""
    return _is_mode_on() or _is_autocast_on()


def without_modes(kernel: Callable[..., Result], *args: Any) -> Result:
    """Return the result of the kernel, run without the active function modes and autocast."""
    with _Hidden(), _WithoutAutocast():
        return kernel(*args)
