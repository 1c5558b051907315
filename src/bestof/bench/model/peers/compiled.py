"""torch.compile, for inference and training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bestof.bench.model.peers.engine import prepare
from bestof.bench.model.peers.prepared import Prepared
from bestof.bench.model.step import TrainingStep
from bestof.torch.engines.table import find_engines

__all__ = ["prepare", "prepare_training"]


def prepare_training(
    model: nn.Module, step: TrainingStep, _threads: int, *, engine: str
) -> Prepared:
    """Return a step with compiled forward and backward; the optimizer is PyTorch's."""
    (row,) = find_engines([engine])
    compiled: Any = torch.compile(model, mode=row.options.get("mode"))
    return Prepared(step.on(model, step.images, call=compiled))
