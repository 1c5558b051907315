"""Which calls of PyTorch's attention bestof chooses for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.guards import PLAIN, passes_through

Lie = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a tensor."""


class Look(NamedTuple):
    """What a call looks like. Two calls that look alike are the same problem."""

    tensors: tuple[Lie, ...]
    mask: Lie | None
    causal: bool
    threads: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor], mask: Tensor | None, causal: bool) -> Look:
        """Return what a call of tensors on the CPU looks like."""
        return cls(
            tuple((one.shape, one.stride(), one.dtype) for one in tensors),
            None if mask is None else (mask.shape, mask.stride(), mask.dtype),
            causal,
            torch.get_num_threads(),
        )


def look_of(
    tensors: Sequence[Tensor], mask: Tensor | None, causal: bool, dtypes: Collection[torch.dtype]
) -> Look | None:
    """Return what a call looks like, or None if it is passed through to PyTorch.

    Passed through are subclasses of Tensor, other devices, dtypes other than these, traced calls,
    and all calls while results are to be deterministic. C++ has passed small calls through before.
    """
    if passes_through():
        return None
    for one in tensors:
        if (
            type(one) not in PLAIN  # before its dtype is asked for, which a subclass would see
            or one.dtype not in dtypes
            or not one.is_cpu
            or one.layout is not torch.strided
        ):
            return None
    if not (mask is None or (type(mask) in PLAIN and mask.is_cpu)):
        return None
    return Look.of(tensors, mask, causal)


def fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Return whether the native kernel computes this, and PyTorch accepts it."""
    return (
        q.dim() == k.dim() == 4
        and q.numel() > 0
        and k.numel() > 0
        and k.dtype is v.dtype is q.dtype
        and k.shape == v.shape
        and q.shape[0] == k.shape[0]
        and q.shape[3] == k.shape[3]
        and q.shape[1] % k.shape[1] == 0
        and (q.stride(3) == k.stride(3) == v.stride(3) == 1 or q.shape[3] == 1)
        and (mask is None or _is_mask(mask, q, k))
    )


def fits_backward(gradient: Tensor, q: Tensor, out: Tensor, logsumexp: Tensor) -> bool:
    """Return whether the native kernel reads these, besides what `fits` asks of the others."""
    return (
        gradient.dtype is out.dtype is q.dtype
        and logsumexp.dtype is torch.float32
        and gradient.shape == out.shape == q.shape
        and logsumexp.shape == q.shape[:3]
        and (gradient.stride(3) == out.stride(3) == 1 or q.shape[3] == 1)
    )


def _is_mask(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Return whether it is a mask that PyTorch takes for these scores."""
    if mask.dtype not in (q.dtype, torch.float32) or mask.dim() not in (2, 4):
        return False
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])[-mask.dim() :]
    return all(extent in (1, of) for extent, of in zip(mask.shape, scores, strict=True))
