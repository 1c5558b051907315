"""Tells calls that only autograd observes, so that a native kernel may answer them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def is_plain_call() -> bool:
    """Return whether no compiler, dispatch mode, tracer or transform observes the call."""
    return not torch.compiler.is_compiling() and (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def is_plain_tensor(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor on the CPU can be read as it is."""
    return (
        type(tensor) in _PLAIN
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor.is_complex()
    )
