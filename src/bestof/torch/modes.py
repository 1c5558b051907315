"""Kernels in Python, as modes of PyTorch see them: not at all, like kernels in C++."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_count_modes: Callable[[], int] = torch._C._len_torch_function_stack
_Hidden: Any = torch._C.DisableTorchFunction  # has no annotations


def hidden_from_modes(kernel: Callable[..., Result]) -> Callable[..., Result]:
    """Return the kernel, run without the function modes that are active around a call.

    A mode such as `torch.device("meta")` changes what `torch.empty` returns. PyTorch switches it
    off while it runs an operator, but TorchScript and the autograd engine reach a kernel with the
    mode still on. Without a mode this costs 0.1 us.
    """

    @wraps(kernel)
    def run(*args: Any) -> Result:
        if _count_modes() == 0:
            return kernel(*args)
        with _Hidden():
            return kernel(*args)

    return run
