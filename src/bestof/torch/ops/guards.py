"""States of a program in which PyTorch answers a call, and not a kernel of bestof.

`GUARDS` is the whole list. Two kinds of code read it:

- Kernels below autograd, in Python and in C++ (`native/torch/guards.h`), which answer operators.
  PyTorch's dispatcher has handled most states before it calls them: a dispatch mode, a transform
  of `torch.func`, a compiler with fake tensors, a conjugate or negative bit, a profiler.
  Three states reach the kernels, and they ask for those: `passes_through`.
- Functions that autograd records as one step, which bypass the operators that these states would
  see: `is_plain_call`.

A function mode and autocast reach kernels in Python too. They hide from both: see `modes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bestof.torch.backends.shim import is_skipped


class Guard(NamedTuple):
    """A state, and who asks whether it is up in the calling thread."""

    name: str
    is_up: Callable[[], bool]
    of_kernels: bool
    of_functions: bool


_deterministic = torch._C._get_deterministic_algorithms
_tracing = torch._C._get_tracing_state

GUARDS = (
    Guard("deterministic", _deterministic, True, False),
    # torch.jit.trace records a convolution by the operators that PyTorch's kernel calls. Sizes are
    # tensors meanwhile.
    Guard("traced", lambda: _tracing() is not None, True, True),
    Guard("compiled", torch.compiler.is_compiling, False, True),
    Guard("skipped", is_skipped, True, True),  # behind it: a compiler cannot follow this function
    Guard("dispatch mode", lambda: torch._C._len_torch_dispatch_stack() > 0, False, True),
    Guard(
        "transformed",
        lambda: torch._C._functorch.peek_interpreter_stack() is not None,
        False,
        True,
    ),
    Guard("forward differentiated", lambda: forward_ad._current_level >= 0, False, True),
)

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that bestof chooses for. Subclasses may have code of their own."""

_of_functions = tuple(guard.is_up for guard in GUARDS if guard.of_functions)


def passes_through() -> bool:
    """Return whether PyTorch's own kernel answers every operator at present.

    These are the guards of kernels, written out: a loop over them takes 0.3 microseconds more.
    """
    return _deterministic() or _tracing() is not None or is_skipped()


def is_plain_call() -> bool:
    """Return whether no compiler, dispatch mode, tracer or transform observes the call."""
    return not any(is_up() for is_up in _of_functions)


def in_batches(upstream: Tensor) -> bool:
    """Return whether a backward pass gets its gradients in batches, as for a Jacobian.

    Such a tensor has no memory of its own, and changes no other one in place.
    """
    return torch._C._functorch.is_legacy_batchedtensor(upstream) or not is_plain_call()


def is_plain_tensor(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor on the CPU can be read as it is."""
    return (
        type(tensor) in PLAIN
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor.is_complex()
    )
