"""The key of the inputs of a plan, and the calls that a plan refuses."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from bestof.errors import TorchError

_PLAIN = (
    *(bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def key_of(
    leaves: list[Any], spec: Any, known: bool = False, grad: bool | None = None
) -> tuple[Hashable, ...]:
    """Return (leaves, how leaves nest, threads, grad) as a key of the planned programs.

    grad: whether gradients are on, where the programs depend on it.

    TorchError for leaves that no plan takes; leaves that are `known` may lie on another device.
    """
    described: list[Hashable] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            if leaf is not None and not isinstance(leaf, _PLAIN):
                raise TorchError(
                    f"optimize: an argument is a {type(leaf).__name__}; a plan takes tensors, "
                    "numbers, texts, None, and tuples, lists and dicts of such"
                )
            # By text: 2, 2.0 and True are equal, and nan is not equal to itself.
            described.append((type(leaf), repr(leaf)))
            continue
        if leaf.device.type != "cpu" and not known:
            raise TorchError(
                f"optimize: a plan runs on the CPU; got a tensor on {leaf.device}: move it, or the "
                f"model"
            )
        extents = zip(leaf.shape, leaf.stride(), strict=True)
        strides = tuple(step if extent != 1 else 0 for extent, step in extents)
        described.append((leaf.shape, strides, leaf.dtype))
    return tuple(described), spec, torch.get_num_threads(), grad


def refuse_tracing(args: tuple[Any, ...]) -> None:
    """Raise TorchError under anything that records or transforms operators.

    Such a recorder could not see the kernels, which are given addresses.
    """
    under = None
    if torch._C._get_tracing_state() is not None:
        under = "torch.jit.trace"
    elif torch._C._functorch.peek_interpreter_stack() is not None:
        under = "a transform of torch.func"
    elif _is_being_traced() or any(isinstance(one, FakeTensor) for one in args):
        under = "make_fx or fake tensors"
    if under is not None:
        raise TorchError(
            f"optimize: a plan cannot run under {under}; trace or transform the original model"
        )


def _is_being_traced() -> bool:
    """Return whether make_fx or torch.export follows this thread.

    PyTorch's get_proxy_mode also tells of other threads.
    """
    return torch._C._get_dispatch_mode(
        torch._C._TorchDispatchModeKey.PROXY
    ) is not None or torch._C._dispatch_tls_is_dispatch_key_included(
        torch._C.DispatchKey.PreDispatch
    )
