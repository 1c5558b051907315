"""The functions that run what is no convolution in a plan: poolings and layouts on fixed memory, and PyTorch's
operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx import Node

from bestof.errors import TorchError
from bestof.kernels import Pool2dPlan, transpose
from bestof.torch.plan.arena import Arena
from bestof.torch.plan.operation import Pooling

Runner = Callable[[], object]


def pooling_runner(pool: Pooling, x: Tensor, out: Tensor) -> Runner:
    """Pools x into `out`, both in channels last. By addresses: a call takes 20 us where the code has left the caches,
    and by arrays it took 60. TorchError where `out` has another shape: the kernel is not told how large it is."""
    n, c, h, w = x.shape
    plan = Pool2dPlan(
        (n, h, w, c),
        pool.kernel,
        kind=pool.kind,
        stride=pool.stride,
        padding=pool.padding,
        count_padding=pool.count_padding,
    )
    into = out.permute(0, 2, 3, 1).shape
    if into != plan.y_shape:
        raise TorchError(
            f"optimize: a {pool} of {tuple(x.shape)} yields (N, H, W, C) {tuple(plan.y_shape)}; the plan keeps "
            f"{tuple(into)} for it: make the plan anew"
        )
    return partial(plan.run, x.data_ptr(), out.data_ptr())


def columns_runner(x: Tensor, out: Tensor) -> Runner:
    """Copies x, in channels last, into the contiguous `out`: 59 us for 512 channels of 7 x 7, PyTorch 106."""
    from_: Any = np.asarray(x.permute(0, 2, 3, 1).numpy())
    to: Any = out.numpy()
    return lambda: transpose(from_, (0, 3, 1, 2), out=to)


def torch_runner(
    node: Node,
    arguments: Any,
    slot: int,
    slots: list[Any],
    dead: tuple[int, ...],
    arena: Arena | None,
) -> Runner:
    """Runs PyTorch's operator. A result that lies in `arena` is copied out of it: some operators return a view, or the
    argument itself, without saying so in their schema, and then nobody has planned how long its memory is needed."""
    target: Any = node.target
    positional, named = arguments

    def run() -> None:
        result = target(
            *[find() for find in positional], **{name: find() for name, find in named.items()}
        )
        slots[slot] = result if arena is None else _outside(arena, result)
        for one in dead:
            slots[one] = None

    return run


def _outside(arena: Arena, result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.clone() if arena.holds(result) else result
    if isinstance(result, list | tuple):
        return [_outside(arena, one) for one in result]
    return result


def writing_runner(
    write: Any, arguments: Any, out: Tensor, slots: list[Any], dead: tuple[int, ...]
) -> Runner:
    """Runs PyTorch's operator `write`, which writes into `out`."""
    positional, named = arguments

    def run() -> None:
        write(
            *[find() for find in positional],
            **{name: find() for name, find in named.items()},
            out=out,
        )
        for one in dead:
            slots[one] = None

    return run
