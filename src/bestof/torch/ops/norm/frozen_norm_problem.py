"""What the two passes of a frozen batch norm have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.distance import peak, size_of
from bestof.torch.ops.dtypes import FLOAT32, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.guards import is_plain_tensor
from bestof.torch.ops.rounding_operation import RoundingOperation

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_SHAPE = 4, 64, 112, 112


class FrozenNormProblem(NamedTuple):
    """One pass of a frozen batch norm over a dense tensor."""

    direction: str
    shape: tuple[int, ...]
    channels_last: bool
    relu: bool
    eps: float
    threads: int
    dtype: str

    @classmethod
    def of(cls, direction: str, tensor: Tensor, relu: bool, eps: float) -> FrozenNormProblem | None:
        """Return the problem of a pass over a tensor; None if the kernel cannot read it."""
        last = is_channels_last(tensor)
        if last is None:
            return None
        shape, dtype = tuple(tensor.shape), name_of(tensor.dtype)
        return cls(direction, shape, last, relu, eps, torch.get_num_threads(), dtype)

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} eps={self.eps} threads={self.threads}"

    def __str__(self) -> str:
        words = [self.direction, "x".join(map(str, self.shape))]
        words += [self.dtype] * (self.dtype != FLOAT32.operands)
        return " ".join(words + ["channels last"] * self.channels_last + ["relu"] * self.relu)


class FrozenNormPass(RoundingOperation[FrozenNormProblem]):
    """One pass as an operation. PyTorch has no operator of it."""

    operators = ()

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return the call with another first operand: no numbers are as good a variance as its
        own."""
        return (args[0], tensors[0], *args[2:])


def is_channels_last(tensor: Tensor) -> bool | None:
    """Return whether channels lie beside one another; None if the kernel cannot read the tensor."""
    if tensor.dim() < 2 or tensor.numel() == 0 or not is_plain_tensor(tensor):
        return None
    if tensor.is_contiguous():
        return False
    form = _CHANNELS_LAST.get(tensor.dim())
    return True if form is not None and tensor.is_contiguous(memory_format=form) else None


def in_format_of(tensor: Tensor, other: Tensor | None) -> Tensor:
    """Return a dense tensor, in channels last where the other is; in its own format without one."""
    last = is_channels_last(tensor if other is None else other)
    return tensor.contiguous(
        memory_format=_CHANNELS_LAST[tensor.dim()] if last else torch.contiguous_format
    )


def are_statistics(*tensors: Tensor | None) -> bool:
    """Return whether the kernel reads these numbers of channels."""
    return all(
        one is None or (one.dtype is torch.float32 and one.is_contiguous()) for one in tensors
    )


def rows_of(tensor: Tensor, problem: FrozenNormProblem) -> Tensor:
    """Return the C-contiguous view of a tensor."""
    return tensor.detach().movedim(1, -1) if problem.channels_last else tensor.detach()


def slope_of(variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return weight / sqrt(variance + eps), one number a channel."""
    slope = (variance + eps).rsqrt()
    return slope if weight is None else slope * weight


def scale_of(values: Tensor, slope: Tensor, shift: float = 0.0) -> Scale:
    """Return a bound of the terms of results: values times the steepest slope, and a shift."""
    numbers, steep = size_of(values), peak(slope)
    return Scale(numbers.rms * steep + shift, numbers.peak * steep + shift)


def examples() -> dict[str, Tensor]:
    """Return activations of the first block of a ResNet, in both formats."""
    x, name = random(*_SHAPE), "x".join(map(str, _SHAPE))
    last = x.contiguous(memory_format=torch.channels_last)
    return {name: x, f"{name}, channels last": last}
