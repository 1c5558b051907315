"""The overrides of the process: one of each operation in the table, and of those of CUDA."""

from __future__ import annotations

from typing import ClassVar

from bestof.torch.backends.cuda.device import CUDA, is_built
from bestof.torch.backends.device import CPU
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.override import Override
from bestof.torch.ops import table


class _Made:
    overrides: ClassVar[tuple[ConvolutionOverride | Override, ...]] = ()


def make_overrides() -> None:
    """Make all overrides, if there are none.

    They keep the kernels in place at present as PyTorch's own. Raises TorchError if PyTorch cannot
    hand its own kernels out.
    """
    if not _Made.overrides:
        parts = [Override(one) for one in table.OPERATIONS if one.part]
        others = [Override(one) for one in table.OPERATIONS if not one.part]
        on_cuda = [ConvolutionOverride(CUDA)] if is_built() else []
        _Made.overrides = ConvolutionOverride(CPU, parts), *on_cuda, *others


def overrides() -> tuple[ConvolutionOverride | Override, ...]:
    """Return those that are configured; none if nothing was ever enabled."""
    return _Made.overrides


def operation_overrides() -> tuple[Override, ...]:
    """Return one for each operation and kind of device; none if nothing was ever enabled."""
    return tuple(part for one in _Made.overrides for part in one.parts)


def operation_override(name: str) -> Override | None:
    """Return the override of the operation of this name; None if nothing was ever enabled."""
    return next((one for one in operation_overrides() if one.operation.name == name), None)


def convolution_overrides() -> tuple[ConvolutionOverride, ...]:
    """Return those of convolutions, first of the CPU; none if nothing was ever enabled."""
    return tuple(one for one in _Made.overrides if isinstance(one, ConvolutionOverride))


def convolution_override() -> ConvolutionOverride | None:
    """Return that of convolutions on the CPU; None if nothing was ever enabled."""
    return next(iter(convolution_overrides()), None)
