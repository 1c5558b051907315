"""Converts the weights of a model's convolutions to channels last, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

DEVICES = ("cpu", "cuda")

_ALIASES = 2
"""The holders of a parameter's storage that nobody shares: the parameter, and the caller here."""


class Weights:
    """The weights of a model that channels last concerns, and their original strides.

    No value of a weight changes. A gradient and the state of an optimizer get the strides of their
    parameter: PyTorch's fused optimizers read all of them in the order of memory.
    """

    def __init__(self, model: nn.Module) -> None:
        found = (
            module.weight
            for module in model.modules()
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))
        )
        weights = dict.fromkeys(one for one in found if isinstance(one, nn.Parameter))
        self._strides = {weight: weight.stride() for weight in weights if _is_ours(weight)}
        self.channels_last = False

    def __len__(self) -> int:
        return len(self._strides)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._strides

    def devices(self) -> set[torch.device]:
        """Return the devices of the weights at present."""
        return {weight.device for weight in self._strides}

    def objection(self) -> str | None:
        """Return why the weights cannot be converted, or None."""
        if not self._strides:
            return "no convolution in channels first"
        if any(_is_shared(weight) for weight in self._strides):
            return "other tensors share the memory of its weights"
        return None

    def convert(self, channels_last: bool, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Give all weights one layout. Original strides return exactly."""
        if channels_last == self.channels_last:
            return
        for weight, strides in self._strides.items():
            wanted = _last(strides, weight) if channels_last else strides
            weight.data = _restrided(weight.data, wanted)
        self.channels_last = channels_last
        self.align(optimizers)

    def align(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Give gradients and the optimizers' state the strides of their weights."""
        optimizers = list(optimizers)
        for weight in self._strides:
            wanted = weight.stride()
            if weight.grad is not None:
                weight.grad.data = _restrided(weight.grad.data, wanted)
            for optimizer in optimizers:
                state: dict[str, Any] = optimizer.state.get(weight, {})
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                        state[key] = _restrided(value, wanted)


def _is_ours(weight: nn.Parameter) -> bool:
    """Return whether a weight is a dense one that channels last would change."""
    return (
        not is_lazy(weight)
        and weight.device.type in DEVICES
        and weight.is_floating_point()
        and weight.is_contiguous()
        and not weight.is_contiguous(memory_format=torch.channels_last)
    )


def _is_shared(weight: nn.Parameter) -> bool:
    storage = weight.untyped_storage()
    return (
        storage.is_shared()
        or storage.nbytes() != weight.numel() * weight.element_size()
        or torch._C._storage_Use_Count(storage._cdata) > _ALIASES
    )


def _last(strides: tuple[int, ...], weight: nn.Parameter) -> tuple[int, ...]:
    assert len(strides) == 4
    _, channels, height, width = weight.shape
    return (channels * height * width, 1, width * channels, channels)


def _restrided(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    # A tensor made in inference mode could not be trained afterwards.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor)
