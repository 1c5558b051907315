"""Inputs for examples that tell little: NaN, infinity and large offsets hide what a plan does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import torch
from torch import Tensor

from bestof.torch.ops.distance import finite, peak, rms

_KINDS = torch.float64, torch.float32, torch.float16, torch.bfloat16

_SMALL, _LARGE = 1e-3, 500.0  # of what is used as it is: normalised numbers, images of bytes


def finite_inputs(inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """Return inputs with random numbers in place of NaN and infinity; None if there are none.

    The numbers are normal, and as large as the others of the tensor, or 1 if those are 0.
    """
    noise = _Noise()

    def numbers(one: Tensor) -> Tensor:
        drawn = noise(one) * (rms(finite(one)) or 1.0)
        return torch.where(torch.isfinite(one), one, drawn)

    if all(isfinite(peak(one)) for one in inputs if _is_drawn(one)):
        return None
    return [_like(one, numbers) for one in inputs]


def normal_inputs(inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """Return inputs with normal numbers in place of all others; None if none are floating-point."""
    return [_like(one, _Noise()) for one in inputs] if any(map(_is_drawn, inputs)) else None


def are_usual(inputs: Sequence[Tensor]) -> bool:
    """Return whether any input has numbers of a size that models are made for, or whole numbers.

    Behind a layer or a norm, a bias hides smaller ones, and larger ones hide the bias.
    """
    return any(not _is_drawn(one) or _SMALL < rms(finite(one)) < _LARGE for one in inputs)


class _Noise:
    """Draws normal numbers of the shape and type of a tensor, the same in each process."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, one: Tensor) -> Tensor:
        return torch.empty(one.shape, dtype=one.dtype).normal_(generator=self._generator)


def _is_drawn(one: Tensor) -> bool:
    return one.dtype in _KINDS and one.layout is torch.strided and one.numel() > 0


def _like(one: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a changed tensor, with the strides of the given one; whole numbers as they are."""
    if not _is_drawn(one):
        return one
    # Of axes along which it repeats, as after `expand`, one place.
    lone = one[tuple(slice(None) if stride else slice(1) for stride in one.stride())]
    copy = torch.empty_strided(lone.shape, lone.stride(), dtype=one.dtype)
    return copy.copy_(change(lone)).expand(one.shape)
