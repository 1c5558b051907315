"""PyTorch with `bestof.torch.enable()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

import bestof.torch as integration
from bestof.bench.model.peers.eager import inference, laid_out
from bestof.bench.model.peers.prepared import Prepared, Run
from bestof.bench.model.step import TrainingStep

# Calls without a trial would be taken for settled ones.
_UNBOUNDED = {"kernel": {"budget": None, "cuda": True}}


def prepare(
    model: nn.Module, example: Tensor, _threads: int, *, channels_last: bool = False
) -> Prepared:
    """Enable bestof for the process, and return the model; it settles in its first calls."""
    model, example = laid_out(model, example, channels_last)
    integration.enable(_UNBOUNDED)
    return _prepared(inference(model, example))


def prepare_training(
    model: nn.Module, step: TrainingStep, _threads: int, *, channels_last: bool = False
) -> Prepared:
    model, images = laid_out(model, step.images, channels_last)
    integration.enable(_UNBOUNDED)
    return _prepared(step.on(model, images))


def _prepared(run: Run) -> Prepared:
    @contextmanager
    def replaced() -> Iterator[Run]:
        integration.disable()
        try:
            yield run
        finally:
            integration.enable(_UNBOUNDED)

    return Prepared(run, _trials, replaced)


def _trials() -> int:
    return integration.summary().trials
