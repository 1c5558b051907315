"""torch.compile with its default backend; weights are frozen for inference. It needs a C++
compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared
from bestof.bench.model.step import TrainingStep


def prepare(model: nn.Module, example: Tensor, _threads: int) -> Prepared:
    """Return the compiled model; the first call compiles it."""
    from torch._inductor import config  # noqa: PLC0415  takes a second to import

    config.freezing = True
    compiled: Any = torch.compile(model)

    def run() -> Tensor:
        # Not `inference_mode`: weights are not frozen under it.
        with torch.no_grad():
            return compiled(example)  # type: ignore[no-any-return]

    return Prepared(run)


def prepare_training(model: nn.Module, step: TrainingStep, _threads: int) -> Prepared:
    """Return a step with compiled forward and backward; the optimizer is PyTorch's."""
    compiled: Any = torch.compile(model)
    return Prepared(step.on(model, step.images, call=compiled))
