"""PyTorch without bestof, in either layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared
from bestof.bench.model.step import TrainingStep


def prepare(
    model: nn.Module, example: Tensor, _threads: int, *, channels_last: bool = False
) -> Prepared:
    """Return the model; weights and example change their layout before anything is timed."""
    model, example = laid_out(model, example, channels_last)
    return Prepared(inference(model, example))


def prepare_training(
    model: nn.Module, step: TrainingStep, _threads: int, *, channels_last: bool = False
) -> Prepared:
    model, images = laid_out(model, step.images, channels_last)
    return Prepared(step.on(model, images))


def laid_out(model: nn.Module, images: Tensor, channels_last: bool) -> tuple[nn.Module, Tensor]:
    """Return both in channels last, or unchanged."""
    if not channels_last:
        return model, images
    any_model: Any = model  # PyTorch's annotations lack this form of `to`
    return any_model.to(memory_format=torch.channels_last), images.to(
        memory_format=torch.channels_last
    )


def inference(model: nn.Module, example: Tensor) -> Callable[[], Tensor]:
    """Return a call of the model without gradients."""

    def run() -> Tensor:
        with torch.inference_mode():
            return model(example)  # type: ignore[no-any-return]

    return run
