"""torch.compile; weights are frozen for inference. Its own backend needs a C++ compiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from bestof.bench.model.peers.prepared import Prepared
from bestof.bench.model.step import TrainingStep


def prepare(
    model: nn.Module,
    example: Tensor,
    _threads: int,
    *,
    mode: str | None = None,
    backend: str | None = None,
) -> Prepared:
    """Return the compiled model; the first call compiles it.

    mode: of PyTorch's own backend. backend: a package whose import adds a backend of its name.
    """
    from torch._inductor import config  # noqa: PLC0415  takes a second to import

    config.freezing = True
    if backend is not None:
        import_module(backend)
    compiled: Any = torch.compile(model, mode=mode, backend=backend or "inductor")

    def run() -> Tensor:
        # Not `inference_mode`: weights are not frozen under it.
        with torch.no_grad():
            return compiled(example)  # type: ignore[no-any-return]

    return Prepared(run)


def prepare_training(
    model: nn.Module, step: TrainingStep, _threads: int, *, mode: str | None = None
) -> Prepared:
    """Return a step with compiled forward and backward; the optimizer is PyTorch's."""
    compiled: Any = torch.compile(model, mode=mode)
    return Prepared(step.on(model, step.images, call=compiled))
