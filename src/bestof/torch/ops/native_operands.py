"""Tensors whose memory native kernels read and write by address."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.kernels.addresses import Runnable, c_calls
from bestof.torch.backends.shim import Form, Native, native_plan
from bestof.torch.ops.guards import PLAIN, passes_through


def is_large(tensor: Tensor, least: int) -> bool:
    """Return whether a tensor has so many numbers for each thread, and is plain.

    Of smaller ones, PyTorch computes results in less than 0.2 milliseconds, of which a call of
    Python is 3 % and more.
    """
    return (
        tensor.numel() >= least
        and tensor.numel() >= least * torch.get_num_threads()
        and type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not passes_through()
    )


def are_like(tensor: Tensor, *others: Tensor) -> bool:
    """Return whether others are plain tensors of the type and device of a tensor."""
    return all(
        type(one) in PLAIN
        and one.layout is torch.strided
        and one.dtype is tensor.dtype
        and one.device == tensor.device
        for one in others
    )


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether images are dense in channels last, and in no other format."""
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def compiled_by(
    runnable: Runnable, operands: int, *shapes: Sequence[int], like: Tensor, channels_last: int = 0
) -> Native:
    """Return a native plan as a kernel for settled calls without Python.

    It reads so many operands. shapes: of its results, which have the dtype of `like` and are
    contiguous, but for the first `channels_last` ones.
    """
    forms = []
    for place, shape in enumerate(shapes):
        order = torch.channels_last if place < channels_last else torch.contiguous_format
        result = torch.empty(tuple(shape), dtype=like.dtype, device="meta", memory_format=order)
        forms.append(Form.of(result))
    return native_plan(runnable, c_calls(), runnable.address, operands, forms)


def address(tensor: Tensor | None) -> int:
    """Return the address of the first element; 0 for no tensor."""
    return 0 if tensor is None else tensor.data_ptr()
